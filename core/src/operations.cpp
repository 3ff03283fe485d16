// The operations: validate, ask the backend, check the workspace, enqueue.
#include "rankfold/operations.hpp"

#include "access.hpp"
#include "grouping.hpp"
#include "guard.hpp"
#include "rankfold/validate.hpp"
#include "validate_problem.hpp"
#include "validate_workspace.hpp"

RANKFOLD_NAMESPACE_BEGIN

using detail::BackendAccess;
using detail::guarded;

namespace {

Status null_stream(Op op) noexcept {
  return Status::format(
      StatusCode::invalid_argument,
      "%s: stream is null; it should be a stream of the backend or of the host (no operation uses "
      "a default stream)",
      to_string(op));
}

// Whether the call reads and writes nothing at all, so that no work is enqueued.
template <class Args>
bool writes_nothing(const Args& args, const Problem& problem) noexcept {
  if constexpr (requires { args.grads; }) {
    return false;  // gradients of slots without rows are zeros, which somebody must write
  } else if constexpr (requires { args.addressing.num_rows; }) {
    const ExpertAddressing& addressing = args.addressing;
    const std::int64_t row_end = addressing.row_end < 0 ? addressing.num_rows : addressing.row_end;
    return row_end == addressing.row_begin;
  } else {
    if (problem.bounds.rows == 0) return true;
    const bool no_adapter = problem.bounds.active_rows == 0 || problem.shape.num_slots == 0 ||
                            problem.shape.max_rank == 0;
    // h of rows without adapter is unspecified; y of them is left alone, or zero.
    if constexpr (requires { args.y; }) {
      return no_adapter && problem.options.y_mode == YMode::accumulate;
    } else {
      return no_adapter;
    }
  }
}

template <class Args>
Status dispatch(LoraBackend& backend, const Args& args, const Workspace& workspace,
                Stream stream) noexcept {
  return guarded([&]() -> Status {
    if (Status status = validate(args, backend.device()); !status.ok()) return status;
    const Problem problem = make_problem(args);
    if (stream.handle == nullptr) return null_stream(problem.op);
    if (const auto strategy = BackendAccess::supports(backend, problem); !strategy.ok()) {
      return strategy.status();
    }
    const auto bytes = BackendAccess::workspace_bytes(backend, problem);
    if (!bytes.ok()) return bytes.status();
    if (Status status =
            detail::validate_workspace(args, problem.op, workspace, *bytes, backend.device());
        !status.ok()) {
      return status;
    }
    if (writes_nothing(args, problem)) return {};
    return BackendAccess::run(backend, args, workspace, stream);
  });
}

}  // namespace

Result<Strategy> supports(const LoraBackend& backend, const Problem& problem) noexcept {
  return guarded([&]() -> Result<Strategy> {
    if (Status status = detail::validate_problem(problem); !status.ok()) return status;
    return BackendAccess::supports(backend, problem);
  });
}

Result<Choice> choose(const LoraBackend& backend, const Problem& problem) noexcept {
  return guarded([&]() -> Result<Choice> {
    if (Status status = detail::validate_problem(problem); !status.ok()) return status;
    return BackendAccess::choose(backend, problem);
  });
}

Result<std::uint64_t> workspace_bytes(const LoraBackend& backend, const Problem& problem) noexcept {
  return guarded([&]() -> Result<std::uint64_t> {
    if (Status status = detail::validate_problem(problem); !status.ok()) return status;
    if (const auto strategy = BackendAccess::supports(backend, problem); !strategy.ok()) {
      return strategy.status();
    }
    return BackendAccess::workspace_bytes(backend, problem);
  });
}

Status group_tokens(LoraBackend& backend, const GroupTokensArgs& args, Stream stream,
                    LoraAddressing* addressing) noexcept {
  return guarded([&]() -> Status {
    if (Status status = validate(args, backend.device()); !status.ok()) return status;
    if (stream.handle == nullptr) return null_stream(Op::group_tokens);
    if (addressing == nullptr) {
      return Status(StatusCode::invalid_argument,
                    "group_tokens: addressing is null; it should be where the result is written");
    }
    const auto layout = detail::grouping_layout(args.num_tokens, args.num_slots);
    auto* const memory = static_cast<std::byte*>(args.memory);
    LoraAddressing grouped;
    grouped.mode = AddressingMode::grouped;
    grouped.num_tokens = args.num_tokens;
    grouped.token_slots = args.token_slots;
    grouped.max_segments = layout.max_segments;
    grouped.device = args.device;
    if (args.num_tokens > 0) {
      const auto at = [memory](std::size_t offset) {
        return reinterpret_cast<const std::int32_t*>(memory + offset);
      };
      grouped.token_order = at(layout.token_order);
      grouped.segment_offsets = at(layout.segment_offsets);
      grouped.segment_slots = at(layout.segment_slots);
      grouped.num_segments = at(layout.num_segments);
      if (Status status =
              BackendAccess::group_tokens(backend, args, grouped, memory + layout.scratch, stream);
          !status.ok()) {
        return status;
      }
    }
    *addressing = grouped;
    return {};
  });
}

#define RANKFOLD_OPERATION(name, Args)                                            \
  Status name(LoraBackend& backend, const Args& args, const Workspace& workspace, \
              Stream stream) noexcept {                                           \
    return dispatch(backend, args, workspace, stream);                            \
  }
RANKFOLD_OPERATION(shrink, ShrinkArgs)
RANKFOLD_OPERATION(expand, ExpandArgs)
RANKFOLD_OPERATION(apply_linear, ApplyLinearArgs)
RANKFOLD_OPERATION(gather_shrink, GatherShrinkArgs)
RANKFOLD_OPERATION(apply_embedding, ApplyEmbeddingArgs)
RANKFOLD_OPERATION(shrink_experts, ShrinkExpertsArgs)
RANKFOLD_OPERATION(expand_experts, ExpandExpertsArgs)
RANKFOLD_OPERATION(apply_experts, ApplyExpertsArgs)
RANKFOLD_OPERATION(forward, ForwardArgs)
RANKFOLD_OPERATION(backward, BackwardArgs)
RANKFOLD_OPERATION(forward_embedding, ForwardEmbeddingArgs)
RANKFOLD_OPERATION(backward_embedding, BackwardEmbeddingArgs)
RANKFOLD_OPERATION(backward_experts, BackwardExpertsArgs)
#undef RANKFOLD_OPERATION

RANKFOLD_NAMESPACE_END
