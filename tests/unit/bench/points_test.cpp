#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "bench/off_grid.hpp"
#include "bench/routing.hpp"
#include "bench/workloads.hpp"

using namespace rankfold::tools;
using rankfold::DType;

TEST_CASE("routing: the first draws of a seed") {
  // s = 1: the values s >> 33 that follow, from the recurrence in arbitrary precision.
  const Routing routing = draw_routing(1, 2, 4, 128, 3);
  REQUIRE(routing.token_slots.size() == 2);
  REQUIRE(routing.expert_ids.size() == 6);
  REQUIRE(routing.weights.size() == 6);
  CHECK(routing.token_slots == std::vector<std::int32_t>{2, 2});
  CHECK(routing.expert_ids == std::vector<std::int32_t>{89, 76, 102, 41, 58, 123});
  CHECK(routing.weights == std::vector<float>{0.167236328125f, 0.0921630859375f, 0.143798828125f,
                                              0.092041015625f, 0.10888671875f, 0.16015625f});
}

TEST_CASE("routing: experts of a token are distinct even when they are few") {
  const Routing routing = draw_routing(9, 50, 2, 4, 3);
  for (std::size_t token = 0; token < 50; ++token) {
    const auto begin = routing.expert_ids.begin() + static_cast<std::ptrdiff_t>(3 * token);
    CHECK(std::set<std::int32_t>(begin, begin + 3).size() == 3);
  }
  for (const float weight : routing.weights) {
    CHECK(weight >= 0.0625f);
    CHECK(weight < 0.1875f);
  }
}

TEST_CASE("rows sorted by expert: offsets, and the old order within an expert") {
  const SortedRows sorted = sort_by_expert({2, 0, 2, 3, 0, 2}, 5);
  CHECK(sorted.offsets == std::vector<std::int32_t>{0, 2, 2, 5, 6, 6});
  CHECK(sorted.order == std::vector<std::int32_t>{1, 4, 0, 2, 5, 3});
}

TEST_CASE("the committed workloads: every point moves and computes what the file says") {
  // The reader compares; for experts this holds only if the routing is the file's, draw for draw.
  const Workloads workloads = read_workloads(RANKFOLD_WORKLOADS);
  CHECK(workloads.points.size() == 49);
  std::set<std::string> groups;
  for (const Workload& point : workloads.points) groups.insert(point.group);
  CHECK(groups == std::set<std::string>{"decode", "moe", "prefill", "train bwd", "train fwd"});
  const auto moe =
      std::find_if(workloads.points.begin(), workloads.points.end(),
                   [](const Workload& p) { return p.name == "moe/q3a3b-w2/T4096/r16"; });
  REQUIRE(moe != workloads.points.end());
  CHECK(moe->scale == 1.0f);
  CHECK(moe->sorted_by_expert());
  const std::vector<BatchRow> rows = batch_rows(*moe);
  REQUIRE(rows.size() == 4096 * 8);
  for (std::size_t i = 1; i < rows.size(); ++i) {
    if (rows[i].expert < rows[i - 1].expert) FAIL("rows are not sorted by expert");
  }
  CHECK(rows[5].x_row == 5);  // own x
  CHECK(rows[5].weight != 1.0f);
}

TEST_CASE("off the grid: the same 60 points each time, every value of every axis among them") {
  const std::vector<Workload> points = off_grid_points();
  const std::vector<Workload> again = off_grid_points();
  REQUIRE(points.size() == 60);
  std::set<std::int64_t> ins, outs, ranks, tokens;
  std::set<std::string> names;
  std::set<std::pair<DType, DType>> types;
  int mixed = 0;
  int bare = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const Workload& point = points[i];
    CHECK(point.name == again[i].name);
    CHECK(point.token_slots == again[i].token_slots);
    CHECK(point.slot_ranks == again[i].slot_ranks);
    ins.insert(point.in);
    outs.insert(point.out.begin(), point.out.end());
    ranks.insert(point.rank);
    tokens.insert(point.tokens);
    names.insert(point.name);
    types.insert({point.x_dtype, point.weight_dtype});
    CHECK(point.token_slots.size() == static_cast<std::size_t>(point.tokens));
    for (const std::int32_t slot : point.token_slots) {
      CHECK(slot < point.adapters);
      bare += slot < 0 ? 1 : 0;
    }
    for (const std::int32_t rank : point.slot_ranks) CHECK(rank <= point.rank);
    mixed += std::set<std::int32_t>(point.slot_ranks.begin(), point.slot_ranks.end()).size() > 1;
    CHECK(point.min_bytes > 0);
  }
  const std::set<std::int64_t> widths = {1021, 1536, 2560, 3072, 3584, 5120, 7168, 18944};
  CHECK(ins == widths);
  CHECK(outs == widths);
  CHECK(ranks == std::set<std::int64_t>{4, 12, 24, 48, 128});
  CHECK(tokens == std::set<std::int64_t>{2, 7, 40, 100, 513, 3000});
  CHECK(names.size() == 60);
  CHECK(types.size() == 3);
  CHECK(mixed >= 6);
  CHECK(bare > 0);
}

TEST_CASE("totals: mixed ranks and wide weights count as they are") {
  Workload point;
  point.in = 10;
  point.out = {6, 4};
  point.rank = 8;
  point.tokens = 3;
  point.adapters = 3;
  point.token_slots = {1, -1, 1};
  point.slot_ranks = {8, 2, 8};
  point.x_dtype = DType::bf16;
  point.weight_dtype = DType::f32;
  const Totals totals = totals_of(point);
  CHECK(totals.bytes == 4 * 2 * (2 * 10 + 10) + 2 * (2 * 10 + 2 * 2 * 10));
  CHECK(totals.flops == 2 * 2 * 2 * (2 * 10 + 10));
}
