// The adapter that is trained: its parameters on the host, the same on the backend's device, and
// the tables through which rankfold's operations see them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <rankfold/rankfold.hpp>
#include <span>
#include <string>
#include <vector>

namespace train {

struct AdapterShape {
  std::int32_t rank = 16;
  double alpha = 32;
};

class Adapter {
 public:
  /// A pair for every slice of every linear target. A as PEFT begins it, uniform within
  /// 1 / sqrt(in); B zero, so that the adapter changes nothing at first. Throws rankfold::Error.
  Adapter(rankfold::LoraBackend& backend, std::span<const rankfold::TargetSpec> targets,
          const AdapterShape& shape, std::uint64_t seed);

  /// Every A and B, one after the other. The optimiser changes them; upload() sends them to the
  /// device, and they are there on return.
  std::span<float> parameters() { return values_; }
  void upload();

  /// One matrix among the parameters.
  struct Pair {
    std::int32_t target;
    std::int32_t slice;
    std::int64_t in;
    std::int64_t out;
    std::size_t a;  ///< where A begins among the parameters, [rank, in]
    std::size_t b;  ///< B, [out, rank]
  };
  std::span<const Pair> pairs() const { return pairs_; }
  const AdapterShape& shape() const { return shape_; }

  /// The table of a target, with the adapter in slot 0; null where nothing is adapted.
  const rankfold::AdapterTable* table(int target) const;
  std::size_t num_targets() const { return tables_.size(); }
  rankfold::LoraBackend& backend() const { return *backend_; }

  /// Writes a PEFT directory. Throws rankfold::Error.
  void save(const std::filesystem::path& folder, const std::string& base_model) const;

 private:
  rankfold::LoraBackend* backend_;
  std::vector<rankfold::TargetSpec> targets_;
  AdapterShape shape_;
  std::vector<Pair> pairs_;
  std::vector<float> values_;
  rankfold::Buffer device_values_;
  std::vector<std::optional<rankfold::AdapterTable>> tables_;
  rankfold::OwnedStream stream_;  // last: it waits for its work before the memory above goes
};

}  // namespace train
