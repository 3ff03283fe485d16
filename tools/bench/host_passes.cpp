#include "host_passes.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>

namespace rankfold::tools {
namespace {

using Lane = std::uint64_t __attribute__((vector_size(32)));
constexpr std::size_t kStep = 4 * sizeof(Lane);

// A loop whose result nobody uses would be removed.
std::atomic<std::uint64_t> sink{0};
// XOR with it writes back what was read; the compiler cannot know.
std::atomic<std::uint64_t> zero{0};

std::uint64_t read_bytes(const std::byte* data, std::size_t bytes) {
  Lane sums[4] = {};
  for (std::size_t i = 0; i + kStep <= bytes; i += kStep) {
    for (std::size_t j = 0; j < 4; ++j) {
      Lane value;
      std::memcpy(&value, data + i + j * sizeof(Lane), sizeof(Lane));
      sums[j] ^= value;
    }
  }
  const Lane sum = sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
  return sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
}

void rewrite_bytes(std::byte* data, std::size_t bytes) {
  const std::uint64_t nothing = zero.load(std::memory_order_relaxed);
  const Lane mask = {nothing, nothing, nothing, nothing};
  for (std::size_t i = 0; i + sizeof(Lane) <= bytes; i += sizeof(Lane)) {
    Lane value;
    std::memcpy(&value, data + i, sizeof(Lane));
    value ^= mask;
    std::memcpy(data + i, &value, sizeof(Lane));
  }
}

// Thread `index`'s part of a range, in whole steps.
struct Part {
  std::size_t begin;
  std::size_t bytes;
};
Part part_of(std::size_t bytes, int index, int count) {
  const std::size_t steps = (bytes + kStep - 1) / kStep;
  const auto edge = [&](int i) {
    return std::min(bytes,
                    steps * static_cast<std::size_t>(i) / static_cast<std::size_t>(count) * kStep);
  };
  return {edge(index), edge(index + 1) - edge(index)};
}

}  // namespace

int host_threads() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

void on_all_threads(const std::function<void(int, int)>& work) {
  const int count = host_threads();
  std::vector<std::thread> others;
  for (int i = 1; i < count; ++i) others.emplace_back(work, i, count);
  work(0, count);
  for (std::thread& other : others) other.join();
}

void elementwise_pass(const std::vector<MemoryRange>& ranges) {
  on_all_threads([&](int index, int count) {
    std::uint64_t sum = 0;
    for (const MemoryRange& range : ranges) {
      const Part part = part_of(range.bytes, index, count);
      std::byte* const data = static_cast<std::byte*>(range.data) + part.begin;
      if (range.written) {
        rewrite_bytes(data, part.bytes);
      } else {
        sum ^= read_bytes(data, part.bytes);
      }
    }
    sink.fetch_xor(sum, std::memory_order_relaxed);
  });
}

void copy_pass(void* destination, const void* source, std::size_t bytes) {
  on_all_threads([&](int index, int count) {
    const Part part = part_of(bytes, index, count);
    std::memcpy(static_cast<std::byte*>(destination) + part.begin,
                static_cast<const std::byte*>(source) + part.begin, part.bytes);
  });
}

}  // namespace rankfold::tools
