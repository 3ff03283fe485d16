#include "groups.hpp"

namespace rankfold::bench {

bool serve(const Machine& machine) {
  std::printf("apply_linear, hidden %lld to %lld, bf16, weights rotated over %.1f GiB\n",
              static_cast<long long>(kHidden), static_cast<long long>(kHidden),
              static_cast<double>(machine.weights.bytes) * 0x1p-30);
  std::printf(
      "of: cold read loop (GB/s) or Eigen float32 product %d^3 (GFLOP/s), measured in turn with "
      "the point;\nmedians of %d rounds, the share's p10 and p90 beside it\n\n",
      kProductSize, machine.rounds);
  std::printf("%-40s %10s %10s %15s %8s %6s %11s %13s\n", "point", "median us", "best us", "rate",
              "of", "share", "p10 to p90", "Eigen loop us");

  const PointSpec points[] = {
      {"decode 1 token", 1, 1, 0, true},
      {"decode 16 tokens, 16 adapters", 16, 16, 0, true},
      {"decode 64 tokens, 64 adapters", 64, 64, 0, true},
      {"16 tokens, 1 adapter", 16, 1, 0, false},
      {"64 tokens, 1 adapter", 64, 1, 0, false},
      {"prefill 2048 tokens, 8 adapters", 2048, 8, 0, false},
  };
  bool correct = true;
  for (const std::int32_t rank : {16, 64}) {
    for (PointSpec spec : points) {
      spec.rank = rank;
      const double work = spec.by_bytes
                              ? static_cast<double>(spec.adapters * WeightPool::adapter_bytes(rank))
                              : 4.0 * static_cast<double>(spec.tokens * kHidden) * rank;
      const auto yardstick = [&] {
        return spec.by_bytes ? machine.read_bandwidth() : eigen_product_rate(machine.threads);
      };
      const PointTimes times =
          measure(machine.backend, spec, machine.weights, machine.rounds, work, yardstick);
      const std::string name = spec.name + ", rank " + std::to_string(rank);
      if (!times.correct) {
        std::printf("%-40s WRONG: %.2f units in the last place of y\n", name.c_str(), times.error);
        correct = false;
        continue;
      }
      std::printf("%-40s %10.1f %10.1f %7.1f %7s %8.1f %5.0f%% %4.0f to %3.0f%% %13.1f\n",
                  name.c_str(), times.step.median * 1e6, times.step.best * 1e6,
                  work / times.step.median * 1e-9, spec.by_bytes ? "GB/s" : "GFLOP/s",
                  times.step.yardstick * 1e-9, 100 * times.step.share, 100 * times.step.share_p10,
                  100 * times.step.share_p90, times.eigen * 1e6);
      std::fflush(stdout);
    }
  }
  return correct;
}

}  // namespace rankfold::bench
