// The free functions' way to a backend's protected functions. Nobody else includes this.
#pragma once

#include "rankfold/backend.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

struct BackendAccess {
  static Result<Strategy> supports(const LoraBackend& backend, const Problem& problem) {
    return backend.do_supports(problem);
  }
  static Result<Choice> choose(const LoraBackend& backend, const Problem& problem) {
    return backend.do_choose(problem);
  }
  static Result<std::uint64_t> workspace_bytes(const LoraBackend& backend, const Problem& problem) {
    return backend.do_workspace_bytes(problem);
  }
  static Status group_tokens(LoraBackend& backend, const GroupTokensArgs& args,
                             const LoraAddressing& grouped, void* scratch, Stream stream) {
    return backend.do_group_tokens(args, grouped, scratch, stream);
  }

  // One overload an operation, so that the dispatcher is one template.
#define RANKFOLD_ACCESS(Args, function)                                                 \
  static Status run(LoraBackend& backend, const Args& args, const Workspace& workspace, \
                    Stream stream) {                                                    \
    return backend.function(args, workspace, stream);                                   \
  }
  RANKFOLD_ACCESS(ShrinkArgs, do_shrink)
  RANKFOLD_ACCESS(ExpandArgs, do_expand)
  RANKFOLD_ACCESS(ApplyLinearArgs, do_apply_linear)
  RANKFOLD_ACCESS(GatherShrinkArgs, do_gather_shrink)
  RANKFOLD_ACCESS(ApplyEmbeddingArgs, do_apply_embedding)
  RANKFOLD_ACCESS(ShrinkExpertsArgs, do_shrink_experts)
  RANKFOLD_ACCESS(ExpandExpertsArgs, do_expand_experts)
  RANKFOLD_ACCESS(ApplyExpertsArgs, do_apply_experts)
  RANKFOLD_ACCESS(ForwardArgs, do_forward)
  RANKFOLD_ACCESS(BackwardArgs, do_backward)
  RANKFOLD_ACCESS(ForwardEmbeddingArgs, do_forward_embedding)
  RANKFOLD_ACCESS(BackwardEmbeddingArgs, do_backward_embedding)
  RANKFOLD_ACCESS(BackwardExpertsArgs, do_backward_experts)
#undef RANKFOLD_ACCESS
};

}  // namespace detail
RANKFOLD_NAMESPACE_END
