#include "extra_checks.hpp"

#include <algorithm>
#include <numeric>
#include <set>

#include "cold_layers.hpp"
#include "exact_check.hpp"
#include "must.hpp"

namespace rankfold::tools {
namespace {

constexpr int kGroupings = 32;

Workload attention(std::int64_t tokens, std::int32_t adapters) {
  Workload point;
  point.group = "checks";
  point.in = 4096;
  point.out = {4096, 1024, 1024};
  point.rank = 8;
  point.tokens = tokens;
  point.adapters = adapters;
  point.scale = 0.5f;
  std::uint64_t state = 8192;
  for (std::int64_t token = 0; token < tokens; ++token) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    point.token_slots.push_back(
        static_cast<std::int32_t>((state >> 33) % static_cast<std::uint64_t>(adapters)));
  }
  return point;
}

void count_bytes(Workload& point) {
  const Totals totals = totals_of(point);
  point.min_bytes = static_cast<std::int64_t>(totals.bytes);
  point.flops = static_cast<std::int64_t>(totals.flops);
}

std::vector<std::int32_t> download(Bench& bench, const std::int32_t* from, std::size_t count) {
  std::vector<std::int32_t> values(count);
  must(bench.backend.copy(values.data(), from, count * sizeof(std::int32_t),
                          CopyKind::device_to_host, bench.stream));
  must(bench.backend.synchronize(bench.stream));
  return values;
}

void check_grouping(Bench& bench, const Workload& point, const LoraAddressing& grouped) {
  std::vector<std::int32_t> order(point.token_slots.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return point.token_slots[static_cast<std::size_t>(a)] <
           point.token_slots[static_cast<std::size_t>(b)];
  });
  if (download(bench, grouped.token_order, order.size()) != order) {
    throw CommandError(kExitFailure, "wrong result: token_order is not the stable order by slot");
  }
  const std::vector<std::int32_t> segments = download(bench, grouped.num_segments, 1);
  const std::set<std::int32_t> used(point.token_slots.begin(), point.token_slots.end());
  if (segments[0] != static_cast<std::int32_t>(used.size())) {
    throw CommandError(kExitFailure, fmt::format("wrong result: {} segments of {} slots in use",
                                                 segments[0], used.size()));
  }
}

ExtraCheck time_group_tokens(Bench& bench, std::int64_t tokens, std::int32_t adapters) {
  ExtraCheck check;
  check.name = fmt::format("group_tokens {} rows, {} slots", tokens, adapters);
  check.what = "us in a graph";
  check.limit = 5;
  const Workload point = attention(tokens, adapters);
  Step step(bench.backend, bench.stream, point);
  check_grouping(bench, point, step.linear());
  const auto recording = bench.timer.record([&] {
    for (int i = 0; i < kGroupings; ++i) step.group();
  });
  check.value = bench.timer.time(*recording, kGroupings, {}).median * 1e6;
  return check;
}

ExtraCheck compare_max_rank(Bench& bench, std::int64_t tokens, std::int32_t adapters) {
  ExtraCheck check;
  check.name = fmt::format("max_rank 256, rank 8: T{}, {} adapters", tokens, adapters);
  check.limit = 1.1;
  Workload point = attention(tokens, adapters);
  count_bytes(point);
  double times[2] = {};
  for (const int wide : {0, 1}) {
    point.table_rank = wide == 0 ? 8 : 256;
    const PointResult result = run_point(bench, point, false);
    if (result.outcome != PointResult::Outcome::timed) {
      check.failure = result.reason;
      return check;
    }
    times[wide] = result.time.median;
  }
  check.value = times[1] / times[0];
  check.what = fmt::format("time over that of max_rank 8 ({:.2f} us and {:.2f} us)", times[1] * 1e6,
                           times[0] * 1e6);
  return check;
}

ExtraCheck count_launches(Bench& bench) {
  ExtraCheck check;
  check.name = "no row has an adapter, active_rows_bound 0";
  check.what = "launches";
  check.limit = 0;
  Workload point = attention(256, 8);
  point.token_slots.assign(256, -1);
  const Step step(bench.backend, bench.stream, point);
  const ColdLayers layers(bench.backend, bench.stream, bench.patterns, point, step, 1);
  ApplyLinearArgs args = std::get<ApplyLinearArgs>(layers.call(0));
  args.addressing.active_rows_bound = 0;
  const Problem problem = make_problem(args);
  const Buffer workspace =
      must(Buffer::create(bench.backend, must(workspace_bytes(bench.backend, problem))));
  const auto apply = [&] {
    must(apply_linear(bench.backend, args, workspace.workspace(), bench.stream));
  };
  apply();
  const ExactSamples samples(bench.patterns, point, layers.layout());
  check.failure = samples.check(bench.backend, bench.stream, layers, 0).failure;
  check.value = bench.timer.record(apply)->num_nodes();
  return check;
}

template <class Run>
void add(std::vector<ExtraCheck>& checks, const char* name, Run run) {
  try {
    checks.push_back(run());
  } catch (const CommandError& error) {
    ExtraCheck check;
    check.name = name;
    check.failure = error.what();
    checks.push_back(check);
  }
}

}  // namespace

std::vector<ExtraCheck> run_extra_checks(Bench& bench) {
  std::vector<ExtraCheck> checks;
  if (!bench.timer.has_graphs()) return checks;
  for (const std::int64_t tokens : {64, 256, 2048, 8192}) {
    add(checks, "group_tokens",
        [&] { return time_group_tokens(bench, tokens, tokens == 64 ? 16 : 64); });
  }
  const std::pair<std::int64_t, std::int32_t> batches[] = {{1, 1}, {64, 32}, {256, 8}, {2048, 8}};
  for (const auto& [tokens, adapters] : batches) {
    add(checks, "max_rank 256",
        [&, t = tokens, a = adapters] { return compare_max_rank(bench, t, a); });
  }
  add(checks, "no row has an adapter", [&] { return count_launches(bench); });
  return checks;
}

}  // namespace rankfold::tools
