// rankfold_bench_cpu [GiB of weights] [rounds a point]
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "machine.hpp"
#include "point.hpp"
#include "rankfold/reference.hpp"

using namespace rankfold;
using namespace rankfold::bench;

namespace {

void fill(BFloat16* values, std::size_t count) {
  std::uint32_t state = 12345;
  for (std::size_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    values[i] = to_bfloat16(static_cast<float>(state >> 8) * 0x1p-30f - 0x1p-7f);
  }
}

int run(double gib, int rounds) {
  throw_if_error(Registry::instance().add(reference::descriptor()));
  LoraBackend& backend = *Registry::instance().get("reference").value();
  BackendDescription description;
  reference::descriptor().describe(&description);
  std::printf("%s\n%s\n", description.devices[0].name, description.detail);

  Buffer memory = Buffer::create(backend, static_cast<std::size_t>(gib * 0x1p30)).value();
  fill(memory.as<BFloat16>(), memory.bytes() / 2);
  const WeightPool pool{memory.as<std::byte>(), memory.bytes()};

  const int threads = num_threads();
  const auto yardstick = [&](bool by_bytes) {
    return by_bytes ? read_bandwidth(pool.memory, pool.bytes, threads)
                    : eigen_product_rate(threads);
  };
  std::printf("hidden %lld -> %lld, bf16, weights rotated over %.1f GiB, %d threads\n",
              static_cast<long long>(kHidden), static_cast<long long>(kHidden), gib, threads);
  std::printf(
      "of: cold read loop (GB/s) or Eigen float32 product %d^3 (GFLOP/s), measured in turn with "
      "the "
      "point;\nmedians of %d rounds, the share's p10 and p90 beside it\n\n",
      kProductSize, rounds);
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
      const PointTimes times =
          measure(backend, spec, pool, rounds, work, [&] { return yardstick(spec.by_bytes); });
      const std::string name = spec.name + ", rank " + std::to_string(rank);
      if (!times.correct) {
        std::printf("%-40s WRONG: %.2f units in the last place of y\n", name.c_str(), times.error);
        correct = false;
        continue;
      }
      std::printf("%-40s %10.1f %10.1f %7.1f %7s %8.1f %5.0f%% %4.0f to %3.0f%% %13.1f\n",
                  name.c_str(), times.median * 1e6, times.best * 1e6, work / times.median * 1e-9,
                  spec.by_bytes ? "GB/s" : "GFLOP/s", times.yardstick * 1e-9, 100 * times.share,
                  100 * times.share_p10, 100 * times.share_p90, times.eigen * 1e6);
      std::fflush(stdout);
    }
  }
  return correct ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? std::atof(argv[1]) : 2.0, argc > 2 ? std::atoi(argv[2]) : 20);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rankfold_bench_cpu: %s\n", error.what());
    return 2;
  }
}
