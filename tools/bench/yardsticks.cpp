#include "yardsticks.hpp"

#include <algorithm>

#include "must.hpp"
#include "timing.hpp"

namespace rankfold::tools {
namespace {

constexpr Effort kEffort{.seconds = 1.0};

bool on_host(const LoraBackend& backend) { return backend.device().type == DeviceType::cpu; }

Buffer allocate(LoraBackend& backend, std::size_t bytes) {
  return must(Buffer::create(backend, bytes));
}

}  // namespace

double Yardsticks::best_bytes_per_second() const {
  return std::max(copy_bytes_per_second, read_bytes_per_second.value_or(0));
}

double Yardsticks::bound(std::int64_t bytes, std::int64_t flops) const {
  return lower_bound(bytes, best_bytes_per_second(), flops, matrix_flops_per_second.value_or(0));
}

Yardsticks measure_yardsticks(LoraBackend& backend, Stream stream, const MachineLimits& limits) {
  Yardsticks yardsticks;
  const auto bytes = static_cast<std::size_t>(limits.cold_bytes);
  Buffer memory = allocate(backend, bytes);
  must(backend.fill(memory.data(), 1, bytes, stream));
  must(backend.synchronize(stream));
  const std::size_t half = bytes / 2 / 256 * 256;
  std::byte* const upper = memory.as<std::byte>() + half;
  if (on_host(backend)) {
    yardsticks.threads = host_threads();
    const Timing copy = time_replays(
        1, [&] { copy_pass(upper, memory.data(), half); }, kEffort);
    yardsticks.copy_bytes_per_second = 2 * static_cast<double>(half) / copy.median;
    const Timing read = time_replays(
        1,
        [&] {
          elementwise_pass({{memory.data(), bytes, false}});
        },
        kEffort);
    yardsticks.read_bytes_per_second = static_cast<double>(bytes) / read.median;
    yardsticks.matrix_flops_per_second = host_matrix_rate();
    yardsticks.matrix_source = "float32 product by Eigen";
  } else {
    const Timing copy = time_replays(
        1,
        [&] {
          must(backend.copy(upper, memory.data(), half, CopyKind::device_to_device, stream));
          must(backend.synchronize(stream));
        },
        kEffort);
    yardsticks.copy_bytes_per_second = 2 * static_cast<double>(half) / copy.median;
    yardsticks.matrix_source = "not measured: bounds are by bytes alone";
  }
  return yardsticks;
}

FloorPass::FloorPass(LoraBackend& backend, Stream stream, const std::vector<LayerRanges>& layers)
    : backend_(backend), stream_(stream) {
  std::size_t largest = 0;
  for (const LayerRanges& layer : layers) {
    for (const MemoryRange& range : layer.ranges) {
      ranges_.push_back(range);
      largest = std::max(largest, range.bytes);
    }
  }
  if (!on_host(backend)) scratch_ = allocate(backend, largest);
}

void FloorPass::run() {
  if (on_host(backend_)) return elementwise_pass(ranges_);
  for (const MemoryRange& range : ranges_) {
    // A copy reads and writes, so a range that is only read counts by half.
    const std::size_t bytes = range.written ? range.bytes : range.bytes / 2;
    must(backend_.copy(scratch_.data(), range.data, bytes, CopyKind::device_to_device, stream_));
  }
}

}  // namespace rankfold::tools
