// Which strategy computes a problem.
#include <algorithm>
#include <cinttypes>

#include "backend.hpp"
#include "configurations.hpp"
#include "kernels/backward_tensor.hpp"
#include "kernels/experts.hpp"
#include "linear.hpp"
#include "plan.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

constexpr Op kOps[] = {
    Op::shrink,          Op::expand,         Op::apply_linear,      Op::gather_shrink,
    Op::apply_embedding, Op::shrink_experts, Op::expand_experts,    Op::apply_experts,
    Op::forward,         Op::backward,       Op::forward_embedding, Op::backward_embedding};

// Of the operations of experts, for automatic, experts_gathered and experts_sorted.
Result<Strategy> choose_experts(const Problem& problem) noexcept {
  const Strategy asked = problem.options.strategy;
  const Strategy fused = problem.expert_mode == ExpertMode::gather ? Strategy::experts_gathered
                                                                   : Strategy::experts_sorted;
  const char* const reason = why_not_fused_experts(problem);
  if (asked == Strategy::automatic) return reason == nullptr ? fused : Strategy::general;
  if (asked != fused) {
    return Status::format(StatusCode::unsupported, "%s: strategy is %s; in mode %s it should be %s",
                          to_string(problem.op), to_string(asked),
                          fused == Strategy::experts_gathered ? "gather" : "grouped",
                          to_string(fused));
  }
  if (reason == nullptr) return fused;
  return Status::format(StatusCode::unsupported, "%s: strategy is %s; for it %s",
                        to_string(problem.op), to_string(asked), reason);
}

// Whether the strategy, forced, may need more than workspace_bytes() says where the call leaves it
// open. That knows nothing of files, since it is monotone in the bounds, which entries are not.
bool needs_own_workspace(Op op, Strategy strategy) noexcept {
  return strategy == Strategy::unfused || (routes_experts(op) && strategy == Strategy::general);
}

}  // namespace

int CudaBackend::do_list_strategies(StrategyInfo* out, int capacity) const {
  int count = 0;
  const auto add = [&](Op op, Strategy strategy, const char* conditions) {
    if (count < capacity)
      out[count] = {op, strategy, conditions, configuration_names(op, strategy)};
    ++count;
  };
  add(Op::group_tokens, Strategy::grouped, "counting sort");
  add(Op::backward, Strategy::tensor_core,
      "compute capability 9.0; x, dy, A and B of one dtype, f16 or bf16; max_rank <= 64; no "
      "dropout");
  for (const Op op : {Op::shrink, Op::expand, Op::apply_linear, Op::forward, Op::apply_embedding,
                      Op::forward_embedding}) {
    add(op, Strategy::gemv,
        "addressing uniform; at most 8 rows; x f16 or bf16; A and B of x's dtype or f32");
    add(op, Strategy::routed, "addressing tokens; x f16 or bf16; A and B of x's dtype or f32");
    add(op, Strategy::grouped,
        "x f16 or bf16; A and B of x's dtype or f32; at most 1024 slots for tokens");
    if (op == Op::apply_linear || op == Op::forward) {
      add(op, Strategy::tensor_core,
          "compute capability 9.0; x, A and B of one dtype, f16 or bf16, or x bf16, A and B f32 "
          "and max_rank <= 128; no dropout; not batch-invariant");
    }
  }
  add(Op::apply_linear, Strategy::unfused,
      "any dtype, rank, size and stride; a delta of float32 in the workspace");
  add(Op::apply_experts, Strategy::experts_gathered,
      "mode gather; x, A and B of one dtype, f16 or bf16; max_rank <= 256");
  add(Op::apply_experts, Strategy::experts_sorted,
      "mode grouped; x, A and B of one dtype, f16 or bf16; max_rank <= 256");
  for (const Op op : kOps) add(op, Strategy::general, "any dtype, rank, size and stride");
  return count;
}

Problem CudaBackend::tuned(const Problem& problem) const {
  const TunedChoice* const choice = tuning_.find(problem);
  if (choice == nullptr || needs_own_workspace(problem.op, choice->strategy)) return problem;
  Problem tuned = problem;
  tuned.options.strategy = choice->strategy;
  tuned.options.configuration = choice->configuration;
  const bool takes =
      is_linear_op(problem.op) ? plan_linear(tuned, traits_).ok() : strategy_of(tuned).ok();
  return takes ? tuned : problem;
}

Result<Strategy> CudaBackend::do_supports(const Problem& problem) const {
  return strategy_of(tuned(problem));
}

Result<Choice> CudaBackend::do_choose(const Problem& problem) const {
  const Problem final = tuned(problem);
  const Result<Strategy> strategy = strategy_of(final);
  if (!strategy.ok()) return strategy.status();
  return Choice{*strategy, std::max(final.options.configuration, 1),
                final.options.strategy != problem.options.strategy ? 1 : 0, 0};
}

Result<Strategy> CudaBackend::strategy_of(const Problem& problem) const {
  const CallOptions& options = problem.options;
  const auto checked = [&](Strategy strategy) -> Result<Strategy> {
    if (Status status = check_configuration(problem, strategy); !status.ok()) return status;
    return strategy;
  };
  if (problem.op == Op::group_tokens) return checked(Strategy::grouped);
  if (problem.op == Op::backward_experts) {
    return Status(StatusCode::unsupported,
                  "backward_experts: this version of rankfold does not have it");
  }
  if (problem.op == Op::backward && options.strategy != Strategy::general) {
    const bool fits = traits_.hopper_code && tile_backward(problem).fits;
    if (fits &&
        (options.strategy == Strategy::tensor_core || options.strategy == Strategy::automatic)) {
      return checked(Strategy::tensor_core);
    }
    if (options.strategy == Strategy::tensor_core) {
      return Status::format(
          StatusCode::unsupported,
          "backward: strategy is tensor_core; on cuda it needs a device of compute capability 9.0 "
          "(this one has %d.%d) and a build for 90a (this one is for %s), x, dy, A and B of one "
          "dtype (f16 or "
          "bf16; batch_invariant: bf16), "
          "max_rank from 1 to %d (it is %d) and no dropout",
          traits_.major, traits_.minor, RANKFOLD_CUDA_ARCHITECTURES, kTileMaxRank,
          problem.shape.max_rank);
    }
  }
  if (is_unfused(problem)) return checked(Strategy::unfused);
  if (is_linear_op(problem.op)) {
    Result<LinearPlan> plan = plan_linear(problem, traits_);
    if (!plan.ok()) return plan.status();
    return plan.value().strategy;
  }
  const bool of_experts = options.strategy == Strategy::experts_gathered ||
                          options.strategy == Strategy::experts_sorted;
  if ((problem.op == Op::apply_experts && options.strategy == Strategy::automatic) ||
      (routes_experts(problem.op) && of_experts)) {
    const Result<Strategy> strategy = choose_experts(problem);
    return strategy.ok() ? checked(*strategy) : strategy;
  }
  if (options.strategy != Strategy::automatic && options.strategy != Strategy::general) {
    return Status::format(StatusCode::unsupported,
                          "%s: strategy is %s; the cuda backend has general", to_string(problem.op),
                          to_string(options.strategy));
  }
  return checked(Strategy::general);
}

Result<std::uint64_t> CudaBackend::do_workspace_bytes(const Problem& problem) const {
  if (problem.op == Op::group_tokens) return std::uint64_t{0};
  const WorkspacePlan plan = plan_workspace(problem);
  if (!plan.too_large) return std::uint64_t{plan.bytes};
  return Status::format(StatusCode::unsupported,
                        "%s: the workspace of %" PRId64 " rows and num_slices * max_rank %" PRId64
                        " is over 2^60 bytes",
                        to_string(problem.op), problem.bounds.rows,
                        std::int64_t{problem.shape.num_slices} * problem.shape.max_rank);
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
