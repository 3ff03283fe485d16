// Workspaces and strategies: decided on the host from bounds alone, so no GPU is needed.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "backend.hpp"
#include "rankfold/operations.hpp"

using namespace rankfold;
using rankfold::cuda::CudaBackend;

namespace {

// Traits of an H200. No function of the CUDA runtime is called.
const CudaBackend& backend() {
  static const CudaBackend instance(
      {.index = 0, .num_sms = 132, .major = 9, .minor = 0, .shared_bytes = 232448});
  return instance;
}

constexpr Op kOps[] = {
    Op::shrink,          Op::expand,         Op::apply_linear,      Op::gather_shrink,
    Op::apply_embedding, Op::shrink_experts, Op::expand_experts,    Op::apply_experts,
    Op::forward,         Op::backward,       Op::forward_embedding, Op::backward_embedding};

bool is_experts(Op op) {
  return op == Op::shrink_experts || op == Op::expand_experts || op == Op::apply_experts;
}
bool has_ids(Op op) {
  return op == Op::gather_shrink || op == Op::apply_embedding || op == Op::forward_embedding ||
         op == Op::backward_embedding;
}

struct Model {
  std::int64_t in;
  std::vector<std::int64_t> out;
  std::int32_t num_slots, max_rank;
  DType x, weights;
};
const Model kModels[] = {
    {4096, {4096, 1024, 1024}, 64, 16, DType::bf16, DType::bf16},
    {8192, {28672}, 8, 64, DType::f16, DType::f16},
    {100, {300, 7}, 3, 320, DType::f32, DType::bf16},
    {64, {48}, 2, 8, DType::bf16, DType::f32},
};

std::vector<Problem> problems(Op op) {
  std::vector<Problem> all;
  for (const Model& model : kModels) {
    Problem problem;
    problem.op = op;
    problem.shape.num_slots = model.num_slots;
    problem.shape.num_experts = is_experts(op) ? 16 : 1;
    problem.shape.num_slices = static_cast<std::int32_t>(has_ids(op) ? 1 : model.out.size());
    problem.shape.max_rank = model.max_rank;
    problem.shape.in = model.in;
    for (std::size_t i = 0; i < model.out.size(); ++i) problem.shape.out[i] = model.out[i];
    problem.shape.a_dtype = problem.shape.b_dtype = model.weights;
    problem.x_dtype = has_ids(op) ? DType::i32 : model.x;
    problem.y_dtype = model.x;
    if (op == Op::backward) problem.outputs = kOutputDx | kOutputDa | kOutputDb | kRecomputesH;
    if (op == Op::backward_embedding) problem.outputs = kOutputDa | kOutputDb | kRecomputesH;
    for (const AddressingMode mode :
         {AddressingMode::tokens, AddressingMode::grouped, AddressingMode::uniform}) {
      if (is_experts(op) && mode != AddressingMode::tokens) continue;
      problem.addressing = mode;
      for (const ExpertMode expert_mode : {ExpertMode::grouped, ExpertMode::gather}) {
        if (!is_experts(op) && expert_mode != ExpertMode::grouped) continue;
        problem.expert_mode = expert_mode;
        all.push_back(problem);
      }
    }
  }
  return all;
}

constexpr std::int64_t kSizes[] = {1,   2,   7,   8,   9,   16,   17,   32,   63,   64,   65,
                                   128, 255, 256, 257, 512, 1000, 2048, 4096, 8192, 65536};

std::uint64_t bytes_of(const Problem& problem) {
  const auto bytes = workspace_bytes(backend(), problem);
  REQUIRE_MESSAGE(bytes.ok(), bytes.status().message());
  return *bytes;
}

Bounds bounds(std::int64_t rows, std::int64_t tokens, std::int64_t segments, std::int64_t active) {
  return {.rows = rows, .tokens = tokens, .segments = segments, .active_rows = active};
}

}  // namespace

TEST_CASE("workspaces grow with every bound") {
  for (const Op op : kOps) {
    for (Problem problem : problems(op)) {
      CAPTURE(std::string(to_string(op)));
      CAPTURE(problem.shape.in);
      CAPTURE(static_cast<int>(problem.addressing));
      for (const BatchInvariant invariant : {BatchInvariant::off, BatchInvariant::on}) {
        problem.options.batch_invariant = invariant;
        const std::int64_t top_k = is_experts(op) ? 2 : 1;
        std::uint64_t before = 0;
        for (const std::int64_t size : kSizes) {
          // Everything together, as a batch grows.
          problem.bounds =
              bounds(size * top_k, size, std::min<std::int64_t>(size, problem.shape.num_slots),
                     size * top_k);
          const std::uint64_t bytes = bytes_of(problem);
          CAPTURE(size);
          CHECK(bytes >= before);
          before = bytes;
        }
        // Each bound alone, the others at their largest.
        const std::int64_t most = 8192;
        std::uint64_t of_segments = 0, of_active = 0, of_rows = 0;
        for (const std::int64_t size : kSizes) {
          if (size > most) break;
          CAPTURE(size);
          problem.bounds = bounds(most, most, size, most);
          const std::uint64_t segments = bytes_of(problem);
          CHECK(segments >= of_segments);
          of_segments = segments;
          problem.bounds = bounds(most, most, most, size);
          const std::uint64_t active = bytes_of(problem);
          CHECK(active >= of_active);
          of_active = active;
          problem.bounds = bounds(size * top_k, size, size, 1);
          const std::uint64_t rows = bytes_of(problem);
          CHECK(rows >= of_rows);
          of_rows = rows;
        }
      }
    }
  }
}

TEST_CASE("J2: batches in which no row is active, or in which there is no row, have a plan") {
  for (const Op op : kOps) {
    for (Problem problem : problems(op)) {
      CAPTURE(std::string(to_string(op)));
      for (const std::int64_t rows : {0, 1, 64, 65, 1000}) {
        problem.bounds = bounds(rows, rows, std::min<std::int64_t>(rows, 3), 0);
        CHECK(workspace_bytes(backend(), problem).ok());
        CHECK(choose(backend(), problem).ok());
      }
    }
  }
}

TEST_CASE(
    "the chosen strategy is one that the backend lists; every forced one is taken or refused with "
    "a reason") {
  std::vector<StrategyInfo> lines(256);
  const int count = backend().list_strategies(lines.data(), 256);
  REQUIRE(count > 0);
  REQUIRE(count <= 256);
  lines.resize(static_cast<std::size_t>(count));
  const auto listed = [&](Op op, Strategy strategy) {
    for (const StrategyInfo& line : lines) {
      if (line.op == op && line.strategy == strategy) return true;
    }
    return false;
  };
  for (const StrategyInfo& line : lines) {
    CHECK(std::strlen(line.conditions) > 0);
    CHECK(std::strlen(line.configurations) > 0);
  }
  for (const Op op : kOps) {
    for (Problem problem : problems(op)) {
      CAPTURE(std::string(to_string(op)));
      for (const std::int64_t size : kSizes) {
        problem.bounds =
            bounds(size, size, std::min<std::int64_t>(size, problem.shape.num_slots), size);
        problem.options.strategy = Strategy::automatic;
        const auto chosen = supports(backend(), problem);
        REQUIRE_MESSAGE(chosen.ok(), chosen.status().message());
        CHECK(listed(op, *chosen));
        for (int i = 1; i < kNumStrategies; ++i) {
          problem.options.strategy = static_cast<Strategy>(i);
          const auto forced = supports(backend(), problem);
          if (forced.ok()) {
            CHECK(*forced == problem.options.strategy);
            CHECK(listed(op, *forced));
            (void)bytes_of(problem);
          } else {
            CHECK(forced.status().code() == StatusCode::unsupported);
            CHECK(std::strlen(forced.status().message()) > 20);
          }
        }
      }
    }
  }
}

TEST_CASE("batch_invariant: the way of computing does not depend on how many rows there are") {
  // These share their kernels and, with the option, the order of their sums: they differ in how
  // rows are found.
  const auto family = [](Strategy strategy) {
    return strategy == Strategy::gemv || strategy == Strategy::routed ? Strategy::grouped
                                                                      : strategy;
  };
  for (const Op op : kOps) {
    if (op == Op::backward || op == Op::backward_embedding)
      continue;  // gradients are sums over rows
    for (Problem problem : problems(op)) {
      CAPTURE(std::string(to_string(op)));
      problem.options.batch_invariant = BatchInvariant::on;
      problem.bounds = bounds(1, 1, 1, 1);
      const Strategy first = family(supports(backend(), problem).value());
      for (const std::int64_t size : kSizes) {
        problem.bounds =
            bounds(size, size, std::min<std::int64_t>(size, problem.shape.num_slots), size);
        CAPTURE(size);
        CHECK(family(supports(backend(), problem).value()) == first);
      }
    }
  }
}

TEST_CASE("group_tokens needs no workspace, backward_experts is refused by name") {
  Problem problem;
  problem.op = Op::backward_experts;
  problem.shape = {.num_slots = 1, .num_experts = 2, .max_rank = 8, .in = 64, .out = {64}};
  problem.bounds = bounds(8, 8, 1, 8);
  const auto refused = supports(backend(), problem);
  CHECK(refused.status().code() == StatusCode::unsupported);
  CHECK(std::strstr(refused.status().message(), "backward_experts") != nullptr);
}

namespace {

Problem many_slots(std::int32_t num_slots, std::int64_t rows) {
  Problem problem;
  problem.shape.num_slots = num_slots;
  problem.shape.max_rank = 16;
  problem.shape.in = 64;
  problem.shape.out[0] = 64;
  problem.shape.a_dtype = problem.shape.b_dtype = problem.x_dtype = problem.y_dtype = DType::bf16;
  problem.bounds = {rows, rows, std::min<std::int64_t>(rows, num_slots), rows};
  return problem;
}

Strategy taken(const CudaBackend& by, Problem problem, Strategy asked = Strategy::automatic) {
  problem.options.strategy = asked;
  const auto strategy = supports(by, problem);
  return strategy.ok() ? *strategy : Strategy::automatic;
}

}  // namespace

TEST_CASE("rows are grouped only where a block's counters have room for the slots") {
  const CudaBackend hopper({.index = 0,
                            .num_sms = 132,
                            .major = 9,
                            .minor = 0,
                            .shared_bytes = 232448,
                            .hopper_code = true});
  // Few tokens are grouped for the kernels of many rows, too.
  CHECK(taken(hopper, many_slots(1024, 64), Strategy::tensor_core) == Strategy::tensor_core);
  CHECK(taken(hopper, many_slots(1025, 64), Strategy::tensor_core) == Strategy::automatic);
  CHECK(taken(hopper, many_slots(1025, 64)) == Strategy::grouped);
  CHECK(taken(hopper, many_slots(1025, 65)) == Strategy::general);
  Problem invariant = many_slots(1025, 65);
  invariant.options.batch_invariant = BatchInvariant::on;
  CHECK(taken(hopper, invariant) == Strategy::routed);
  // 99 KB, as 8.6 and 8.9 have.
  const CudaBackend small(
      {.index = 0, .num_sms = 84, .major = 8, .minor = 6, .shared_bytes = 101376});
  CHECK(taken(small, many_slots(700, 65)) == Strategy::grouped);
  CHECK(taken(small, many_slots(1000, 65)) == Strategy::general);
}

TEST_CASE("y with more columns than a grid has blocks for is left to the general kernels") {
  Problem problem = many_slots(4, 16);
  problem.shape.out[0] = std::int64_t{1} << 23;
  CHECK(taken(backend(), problem) == Strategy::grouped);
  problem.shape.out[0] += 1;
  CHECK(taken(backend(), problem) == Strategy::general);
  problem.op = Op::shrink;
  CHECK(taken(backend(), problem) == Strategy::grouped);
}
