#include "machine.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace rankfold::bench {

namespace {

// All threads start together; the time runs from then until the last has ended.
template <class Work>
double seconds_of(int threads, const Work& work) {
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  std::vector<std::thread> team;
  for (int i = 0; i < threads; ++i) {
    team.emplace_back([&, i] {
      ++ready;
      while (!go) std::this_thread::yield();
      work(i);
    });
  }
  while (ready < threads) std::this_thread::yield();
  const auto start = std::chrono::steady_clock::now();
  go = true;
  for (std::thread& thread : team) thread.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::uint64_t sum_words(const std::uint64_t* words, std::size_t count) {
  std::uint64_t sums[8] = {};
  for (std::size_t i = 0; i + 8 <= count; i += 8) {
    for (std::size_t k = 0; k < 8; ++k) sums[k] += words[i + k];
  }
  std::uint64_t sum = 0;
  for (const std::uint64_t part : sums) sum += part;
  return sum;
}

}  // namespace

int num_threads() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

double read_bandwidth(const void* memory, std::size_t bytes, int threads) {
  const auto* const words = static_cast<const std::uint64_t*>(memory);
  const std::size_t share = bytes / sizeof(std::uint64_t) / static_cast<std::size_t>(threads);
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(threads));
  const double seconds = seconds_of(threads, [&](int i) {
    const auto at = static_cast<std::size_t>(i);
    sums[at] += sum_words(words + at * share, share);
  });
  volatile std::uint64_t kept = 0;  // so that the sums are really made
  for (const std::uint64_t sum : sums) kept = kept + sum;
  return static_cast<double>(share * 8) * threads / seconds;
}

double eigen_product_rate(int threads) {
  constexpr int size = kProductSize;
  static const Eigen::MatrixXf a = Eigen::MatrixXf::Random(size, size);
  static const Eigen::MatrixXf b = Eigen::MatrixXf::Random(size, size);
  static Eigen::MatrixXf c = Eigen::MatrixXf::Zero(size, size);
  const int share = (size + threads - 1) / threads;
  const double seconds = seconds_of(threads, [&](int i) {
    const int begin = std::min(size, i * share);
    const int columns = std::min(size - begin, share);
    c.middleCols(begin, columns).noalias() = a * b.middleCols(begin, columns);
  });
  return 2.0 * size * size * size / seconds;
}

}  // namespace rankfold::bench
