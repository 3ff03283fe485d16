// What this machine reaches in this run, beside which times are shown.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "arithmetic.hpp"
#include "host_passes.hpp"
#include "machine.hpp"
#include "rankfold/backend.hpp"
#include "rankfold/memory.hpp"

namespace rankfold::tools {

struct Yardsticks {
  double copy_bytes_per_second = 0;             ///< bytes read and bytes written, over cold memory
  std::optional<double> read_bytes_per_second;  ///< CPU alone
  std::optional<double> matrix_flops_per_second;
  std::string matrix_source;         ///< what multiplied, or why nothing did
  std::optional<FloorTable> floors;  ///< where floors are interpolated, not measured a point
  int threads = 1;                   ///< of the host

  double best_bytes_per_second() const;
  /// Seconds that moving the bytes or multiplying takes at least.
  double bound(std::int64_t bytes, std::int64_t flops) const;
};

/// By loops of the host on a CPU, elsewhere by copies within the device, by the host's clock.
Yardsticks measure_yardsticks(LoraBackend& backend, Stream stream, const MachineLimits& limits);

/// One layer's cold memory.
struct LayerRanges {
  std::vector<MemoryRange> ranges;
};

/// A plain elementwise pass over the cold memory of all layers: loops of the host on a CPU; on
/// other devices copies within the device that move the same number of bytes. Throws CommandError.
class FloorPass {
 public:
  FloorPass(LoraBackend& backend, Stream stream, const std::vector<LayerRanges>& layers);
  /// Enqueues all layers.
  void run();

 private:
  LoraBackend& backend_;
  Stream stream_;
  std::vector<MemoryRange> ranges_;
  Buffer scratch_;
};

}  // namespace rankfold::tools
