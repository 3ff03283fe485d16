// Configurations and tuning files: decided on the host from bounds alone, so no GPU is needed.
#include "configurations.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "backend.hpp"
#include "configuration_names.hpp"
#include "kernels/backward_tensor.hpp"
#include "plan.hpp"
#include "rankfold/operations.hpp"

using namespace rankfold;
using rankfold::cuda::CudaBackend;
using rankfold::cuda::DeviceTraits;
using rankfold::cuda::LinearPlan;
using rankfold::cuda_test::split_names;

namespace {

// An H200. No function of the CUDA runtime is called.
constexpr DeviceTraits kTraits{.index = 0,
                               .num_sms = 132,
                               .major = 9,
                               .minor = 0,
                               .shared_bytes = 232448,
                               .hopper_code = true};

const CudaBackend& backend() {
  static const CudaBackend instance(kTraits);
  return instance;
}

std::int32_t number_of(Op op, Strategy strategy, const std::string& name) {
  const auto names = split_names(cuda::configuration_names(op, strategy));
  const auto found = std::find(names.begin(), names.end(), name);
  REQUIRE(found != names.end());
  return static_cast<std::int32_t>(found - names.begin()) + 1;
}

Problem linear(std::int64_t rows, std::int64_t segments, AddressingMode mode, std::int32_t rank) {
  Problem problem;
  problem.addressing = mode;
  problem.shape = {
      .num_slots = 64, .num_slices = 3, .max_rank = rank, .in = 4096, .out = {4096, 1024, 1024}};
  problem.shape.a_dtype = problem.shape.b_dtype = problem.x_dtype = problem.y_dtype = DType::bf16;
  problem.bounds = {rows, rows, segments, rows};
  return problem;
}

Problem experts(std::int64_t rows, ExpertMode mode) {
  Problem problem = linear(rows, rows, AddressingMode::tokens, 16);
  problem.op = Op::apply_experts;
  problem.shape.num_slots = 1;
  problem.shape.num_experts = 32;
  problem.expert_mode = mode;
  return problem;
}

Problem backward(std::int64_t rows, AddressingMode mode) {
  Problem problem = linear(rows, 8, mode, 16);
  problem.op = Op::backward;
  problem.outputs = kOutputDx | kOutputDa | kOutputDb;
  return problem;
}

std::vector<Problem> problems() {
  std::vector<Problem> all;
  for (const Op op : {Op::shrink, Op::expand, Op::apply_linear, Op::forward, Op::apply_embedding}) {
    for (const auto mode :
         {AddressingMode::tokens, AddressingMode::grouped, AddressingMode::uniform}) {
      for (const std::int32_t rank : {8, 32, 64, 256}) {
        for (const std::int64_t rows : {1, 8, 40, 256, 2048, 65536}) {
          Problem problem = linear(rows, std::min<std::int64_t>(rows, 8), mode, rank);
          problem.op = op;
          if (op == Op::apply_embedding) {
            problem.x_dtype = DType::i32;
            problem.shape.num_slices = 1;
          }
          all.push_back(problem);
        }
      }
    }
  }
  // Many rows of few columns.
  for (const Op op : {Op::apply_linear, Op::forward}) {
    all.push_back(linear(2048, 8, AddressingMode::grouped, 64));
    all.back().op = op;
    all.back().shape.out[0] = 512;
  }
  for (const auto mode : {ExpertMode::grouped, ExpertMode::gather}) {
    for (const std::int64_t rows : {2, 100, 5000}) all.push_back(experts(rows, mode));
  }
  for (const auto mode : {AddressingMode::grouped, AddressingMode::uniform}) {
    for (const std::int64_t rows : {64, 2048, 8192}) all.push_back(backward(rows, mode));
  }
  return all;
}

LinearPlan plan_of(Problem problem, Strategy strategy, const std::string& name) {
  problem.options.strategy = strategy;
  problem.options.configuration = number_of(problem.op, strategy, name);
  const auto plan = cuda::plan_linear(problem, kTraits);
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  return *plan;
}

std::string refusal(Problem problem, Strategy strategy, std::int32_t configuration) {
  problem.options.strategy = strategy;
  problem.options.configuration = configuration;
  const auto answer = supports(backend(), problem);
  CHECK(answer.status().code() == StatusCode::unsupported);
  return answer.status().message();
}

}  // namespace

TEST_CASE("every configuration is for some problem; the others are refused with a reason") {
  std::vector<StrategyInfo> lines(256);
  lines.resize(static_cast<std::size_t>(backend().list_strategies(lines.data(), 256)));
  const std::vector<Problem> all = problems();
  for (const StrategyInfo& line : lines) {
    const bool tested = std::any_of(all.begin(), all.end(),
                                    [&](const Problem& problem) { return problem.op == line.op; });
    if (!tested) continue;
    const std::vector<std::string> names = split_names(line.configurations);
    CHECK(names[0] == "default");
    std::vector<int> taken(names.size());
    for (Problem problem : all) {
      if (problem.op != line.op) continue;
      CAPTURE(std::string(to_string(line.op)));
      CAPTURE(std::string(to_string(line.strategy)));
      problem.options.strategy = line.strategy;
      const bool accepts = supports(backend(), problem).ok();
      if (accepts && line.strategy != Strategy::unfused &&
          !(problem.op == Op::apply_experts && line.strategy == Strategy::general)) {
        Problem open = problem;
        open.options = {};
        CHECK(workspace_bytes(backend(), problem).value() <=
              workspace_bytes(backend(), open).value());
      }
      const auto bytes = accepts ? workspace_bytes(backend(), problem).value() : 0;
      for (std::size_t i = 0; i < names.size(); ++i) {
        problem.options.configuration = static_cast<std::int32_t>(i) + 1;
        const auto answer = supports(backend(), problem);
        CAPTURE(names[i]);
        if (i == 0) CHECK(answer.ok() == accepts);
        if (!answer.ok()) {
          CHECK(answer.status().code() == StatusCode::unsupported);
          CHECK(std::strlen(answer.status().message()) > 20);
          continue;
        }
        CHECK(*answer == line.strategy);
        CHECK(accepts);
        ++taken[i];
        const auto choice = choose(backend(), problem).value();
        CHECK(choice.configuration == static_cast<std::int32_t>(i) + 1);
        CHECK(choice.from_tuning == 0);
        // One workspace serves all of them.
        CHECK(workspace_bytes(backend(), problem).value() == bytes);
        if (problem.op == Op::apply_experts || problem.op == Op::backward ||
            line.strategy == Strategy::unfused) {
          continue;
        }
        const LinearPlan plan = cuda::plan_linear(problem, kTraits).value();
        const std::int64_t columns =
            std::int64_t{problem.shape.num_slices} * problem.shape.max_rank;
        CHECK(plan.splits >= 1);
        CHECK(plan.splits * problem.bounds.rows * columns <=
              cuda::partial_floats(problem.bounds.rows, columns));
        CHECK(plan.prefill.splits % plan.prefill.cluster == 0);
      }
    }
    for (std::size_t i = 0; i < names.size(); ++i) {
      CAPTURE(names[i]);
      CHECK(taken[i] > 0);
    }
  }
}

TEST_CASE("a configuration changes what its name says, and nothing else") {
  const Problem few = linear(16, 16, AddressingMode::grouped, 16);
  const LinearPlan built_in = plan_of(few, Strategy::grouped, "default");
  CHECK(built_in.splits >= 2);
  CHECK(built_in.tiles == 0);
  CHECK(plan_of(few, Strategy::grouped, "splits x2").splits == 2 * built_in.splits);
  CHECK(plan_of(few, Strategy::grouped, "splits x1/2").splits == built_in.splits / 2);
  const LinearPlan both = plan_of(few, Strategy::grouped, "splits x2, 4 tiles");
  CHECK(both.splits == 2 * built_in.splits);
  CHECK(both.tiles == 4);
  CHECK(both.blocks == built_in.blocks);
  CHECK(plan_of(few, Strategy::grouped, "1 tile").splits == built_in.splits);

  const Problem many = linear(2048, 8, AddressingMode::grouped, 64);
  const auto prefill = [&](const char* name) {
    return plan_of(many, Strategy::tensor_core, name).prefill;
  };
  const cuda::PrefillPlan base = prefill("default");
  CHECK(base.splits >= 4);
  CHECK(base.cluster == 2);
  CHECK(base.shrink_rows == 128);
  CHECK(base.expand_rows == 128);
  CHECK(prefill("splits x2").splits == 2 * base.splits);
  CHECK(prefill("no clusters").cluster == 1);
  CHECK(plan_of(many, Strategy::tensor_core, "no clusters").splits == base.splits);
  CHECK(prefill("shrink 64 rows").shrink_rows == 64);
  CHECK(prefill("expand 64 rows").expand_rows == 64);
  CHECK(prefill("expand 64 rows").shrink_rows == 128);
  const cuda::PrefillPlan last = prefill("shrink 64 rows, 8 steps");
  CHECK(last.shrink_rows == 64);
  CHECK(last.expand_rows == 128);
  CHECK(last.expand_steps == 8);

  Problem pairs = experts(5000, ExpertMode::gather);
  pairs.options.configuration =
      number_of(Op::apply_experts, Strategy::experts_gathered, "few rows, 1 part");
  CHECK(cuda::experts_configuration(pairs).size == 0);
  CHECK(cuda::experts_configuration(pairs).parts == 1);
  pairs.options.configuration = 0;
  CHECK(cuda::experts_configuration(pairs).size == -1);
  CHECK(cuda::experts_configuration(pairs).parts == 0);
}

TEST_CASE("blocks of few rows, or of a K that is no multiple of eight, share the tiles of ranks") {
  const auto prefill = [&](const Problem& problem, const char* name = "default") {
    return plan_of(problem, Strategy::tensor_core, name).prefill;
  };
  // Nine row blocks and nine tiles: three blocks have three tiles each.
  const Problem few = linear(513, 1, AddressingMode::grouped, 48);
  const cuda::PrefillPlan shared = prefill(few);
  CHECK(shared.shrink_rows == 64);
  CHECK(shared.tile_parts == 3);
  CHECK(shared.splits == 4);
  CHECK(shared.cluster == 4);
  CHECK(shared.expand_rows == 64);
  CHECK(prefill(few, "expand 128 rows").tile_parts == 3);
  CHECK(prefill(few, "shrink 128 rows").tile_parts == 1);
  const cuda::PrefillPlan low = prefill(linear(513, 1, AddressingMode::grouped, 16));
  CHECK(low.tile_parts == 1);
  CHECK(low.splits == 7);
  CHECK(low.cluster == 1);

  Problem odd = linear(2048, 8, AddressingMode::grouped, 48);
  CHECK(prefill(odd).tile_parts == 1);
  CHECK(prefill(odd).shrink_rows == 128);
  odd.shape.in = 4095;
  CHECK(prefill(odd).tile_parts == 3);
  CHECK(prefill(odd).shrink_rows == 64);
  const std::int32_t rows = number_of(odd.op, Strategy::tensor_core, "shrink 128 rows");
  CHECK(refusal(odd, Strategy::tensor_core, rows).find("64 rows") != std::string::npos);
}

TEST_CASE("a configuration of a backward changes its chunks of rows") {
  Problem problem = backward(8192, AddressingMode::uniform);
  const cuda::BackwardTiling base = cuda::tile_backward(problem);
  CHECK(base.dy_chunks >= 2);
  problem.options.configuration =
      number_of(Op::backward, Strategy::tensor_core, "dy chunks x1/2, x chunks x2");
  const cuda::BackwardTiling changed = cuda::tile_backward(problem);
  CHECK(changed.has_configuration);
  CHECK(changed.dy_chunks == base.dy_chunks / 2);
  CHECK(changed.dy_chunk >= 2 * base.dy_chunk);
  CHECK(changed.x_chunks > base.x_chunks);
  CHECK(changed.dy_partials == base.dy_partials);
  CHECK(changed.x_partials == base.x_partials);
  CHECK(changed.x_chunks <= changed.x_partials);
}

TEST_CASE(
    "refused configurations: past the list, batch_invariant, what the problem has no room for") {
  const Problem few = linear(16, 16, AddressingMode::grouped, 16);
  const auto has = [](const std::string& text, const char* part) {
    CAPTURE(text);
    CHECK(text.find(part) != std::string::npos);
  };
  has(refusal(few, Strategy::grouped, 99),
      "apply_linear: options.configuration is 99; grouped has 15 of them on cuda, so it should be "
      "0 "
      "to 15");
  has(refusal(few, Strategy::general, 2), "general has 1 of them on cuda");
  Problem pinned = few;
  pinned.options.batch_invariant = BatchInvariant::on;
  has(refusal(pinned, Strategy::grouped, 2), "batch_invariant");
  CHECK(choose(backend(), pinned).value().configuration == 1);
  Problem narrow = few;
  narrow.shape.in = 100;
  has(refusal(narrow, Strategy::grouped,
              number_of(Op::apply_linear, Strategy::grouped, "splits x2")),
      "K has 1 splits; 1 to 1 are possible");
  narrow.shape.out[0] = 300;
  narrow.shape.out[1] = narrow.shape.out[2] = 40;
  has(refusal(narrow, Strategy::grouped, number_of(Op::apply_linear, Strategy::grouped, "4 tiles")),
      "2 tiles of 256 columns");
  Problem dropped = few;
  dropped.op = Op::forward;
  dropped.dropout_p = 0.5f;
  has(refusal(dropped, Strategy::grouped, number_of(Op::forward, Strategy::grouped, "splits x2")),
      "dropout");
}

TEST_CASE("a tuning file decides where the call leaves it open and the problem allows it") {
  const auto with = [](const Problem& problem, const std::string& use) {
    std::vector<StrategyInfo> lines(256);
    lines.resize(static_cast<std::size_t>(backend().list_strategies(lines.data(), 256)));
    char key[1024];
    (void)write_tuning_key(problem, key, sizeof(key));
    const auto table = TuningTable::parse(
        std::string("rankfold-tuning 1\ndevice cuda kernels=1 A\n") + key + " -> " + use + "\n",
        {"cuda", "A", 1, 0}, lines.data(), static_cast<int>(lines.size()));
    REQUIRE_MESSAGE(table.ok(), table.status().message());
    CudaBackend tuned(kTraits);
    tuned.set_tuning(*table);
    const Choice choice = choose(tuned, problem).value();
    CHECK(supports(tuned, problem).value() == choice.strategy);
    CHECK(workspace_bytes(tuned, problem).value() == workspace_bytes(backend(), problem).value());
    return choice;
  };
  const Problem few = linear(5, 1, AddressingMode::uniform, 16);
  const Choice built_in = choose(backend(), few).value();
  CHECK(built_in.strategy == Strategy::gemv);
  CHECK(built_in.configuration == 1);
  CHECK(built_in.from_tuning == 0);
  const Choice tuned = with(few, "grouped: splits x1/2");
  CHECK(tuned.strategy == Strategy::grouped);
  CHECK(tuned.configuration == number_of(Op::apply_linear, Strategy::grouped, "splits x1/2"));
  CHECK(tuned.from_tuning == 1);
  // The entry of 5 to 8 rows is no entry for these.
  const auto falls_back = [&](const Problem& problem, const char* use) {
    const Choice choice = with(problem, use);
    CHECK(choice.from_tuning == 0);
    CHECK(choice.strategy == choose(backend(), problem).value().strategy);
    CHECK(choice.configuration == 1);
  };
  falls_back(few, "routed: default");   // of tokens alone
  falls_back(few, "unfused: default");  // needs more workspace
  Problem pinned = few;
  pinned.options.batch_invariant = BatchInvariant::on;
  falls_back(pinned, "grouped: splits x1/2");
  Problem narrow = few;
  narrow.shape.in = 64;
  falls_back(narrow, "gemv: splits x2");
  // gemv takes at most 8 rows: 12 rows share an entry with 16.
  Problem more = linear(12, 1, AddressingMode::uniform, 16);
  falls_back(more, "gemv: default");
  falls_back(experts(100, ExpertMode::gather), "general: default");  // h in the workspace
  CHECK(with(experts(100, ExpertMode::gather), "experts_gathered: many rows").from_tuning == 1);
}
