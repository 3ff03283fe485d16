// Which adapter is where: what the loader tells the server.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "revision.hpp"

namespace swap_under_load {

struct Resident {
  rankfold::AdapterHandle handle;
  std::shared_ptr<const Revision> revision;
};

/// Thread-safe. An entry may be out of date, because the pool evicts: pin() finds that out.
class Directory {
 public:
  explicit Directory(std::int32_t num_adapters);
  /// Returns what was there.
  std::optional<Resident> put(const Resident& resident);
  /// The entry leaves, unless a newer one has come meanwhile.
  void remove(const Resident& resident);
  /// One of those that are there; nothing when there is none.
  std::optional<Resident> pick(std::uint32_t random) const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::optional<Resident>> of_adapter_;
};

}  // namespace swap_under_load
