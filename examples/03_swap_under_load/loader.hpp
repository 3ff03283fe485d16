// The loader: brings adapters in while the server runs steps.
#pragma once

#include <atomic>
#include <random>

#include "directory.hpp"

namespace swap_under_load {

/// Since the start.
struct LoadCounts {
  std::int64_t loads = 0;
  std::int64_t evictions = 0;
  std::int64_t unloads = 0;
  std::int64_t cancelled = 0;
  std::int64_t no_room = 0;
};

class Loader {
 public:
  Loader(rankfold::LoraBackend& backend, rankfold::AdapterPool& pool, rankfold::Stream steps,
         Directory& directory, std::int32_t num_adapters, std::uint32_t seed);

  /// Loads until the pool's slots or memory are used.
  void fill();
  /// Until `stop`.
  void run(const std::atomic<bool>& stop);
  /// From any thread.
  LoadCounts counts() const;

 private:
  enum class Outcome { published, cancelled, no_room };
  Outcome load_one(bool may_cancel);

  rankfold::AdapterPool& pool_;
  rankfold::Stream steps_;
  Directory& directory_;
  std::int32_t num_adapters_;
  std::mt19937 random_;
  rankfold::OwnedStream upload_;  // its own, so that uploads run beside steps
  std::uint32_t next_key_;
  std::atomic<std::int64_t> num_unloads_ = 0, num_cancelled_ = 0, num_no_room_ = 0;
};

/// A stream that runs beside the calling thread: on a GPU every one does, on a CPU a worker's.
rankfold::OwnedStream make_stream(rankfold::LoraBackend& backend);

}  // namespace swap_under_load
