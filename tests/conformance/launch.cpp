#include <cstring>
#include <type_traits>

#include "device_call.hpp"

namespace rankfold::conformance {

namespace {

Status call(LoraBackend& backend, const ShrinkArgs& args, const CallArguments& rest) {
  return shrink(backend, args, rest.workspace, rest.stream);
}
Status call(LoraBackend& backend, const ExpandArgs& args, const CallArguments& rest) {
  return expand(backend, args, rest.workspace, rest.stream);
}
Status call(LoraBackend& backend, const ApplyLinearArgs& args, const CallArguments& rest) {
  return apply_linear(backend, args, rest.workspace, rest.stream);
}
Status call(LoraBackend& backend, const GatherShrinkArgs& args, const CallArguments& rest) {
  return gather_shrink(backend, args, rest.workspace, rest.stream);
}
Status call(LoraBackend& backend, const ApplyEmbeddingArgs& args, const CallArguments& rest) {
  return apply_embedding(backend, args, rest.workspace, rest.stream);
}
Status call(LoraBackend& backend, const ShrinkExpertsArgs& args, const CallArguments& rest) {
  return shrink_experts(backend, args, rest.workspace, rest.stream);
}
Status call(LoraBackend& backend, const ExpandExpertsArgs& args, const CallArguments& rest) {
  return expand_experts(backend, args, rest.workspace, rest.stream);
}
Status call(LoraBackend& backend, const ApplyExpertsArgs& args, const CallArguments& rest) {
  return apply_experts(backend, args, rest.workspace, rest.stream);
}
Status call(LoraBackend& backend, const ForwardArgs& args, const CallArguments& rest) {
  return forward(backend, args, rest.workspace, rest.stream);
}
Status call(LoraBackend& backend, const BackwardArgs& args, const CallArguments& rest) {
  return backward(backend, args, rest.workspace, rest.stream);
}
Status call(LoraBackend& backend, const ForwardEmbeddingArgs& args, const CallArguments& rest) {
  return forward_embedding(backend, args, rest.workspace, rest.stream);
}
Status call(LoraBackend& backend, const BackwardEmbeddingArgs& args, const CallArguments& rest) {
  return backward_embedding(backend, args, rest.workspace, rest.stream);
}

}  // namespace

Status launch(LoraBackend& backend, const CallArguments& arguments, LoraAddressing* grouped) {
  return std::visit(
      [&](const auto& args) -> Status {
        using Args = std::decay_t<decltype(args)>;
        // Stays valid memory, so that who reads it late gets nonsense and not a crash.
        static thread_local Args copy;
        copy = args;
        Status status;
        if constexpr (std::is_same_v<Args, GroupTokensArgs>) {
          status = group_tokens(backend, copy, arguments.stream, grouped);
        } else {
          status = call(backend, copy, arguments);
        }
        static_assert(std::is_trivially_copyable_v<Args>);
        std::memset(static_cast<void*>(&copy), 0xa5, sizeof(Args));
        return status;
      },
      arguments.args);
}

Problem problem_of(const CallArguments& arguments) {
  return std::visit(
      [](const auto& args) -> Problem {
        if constexpr (std::is_same_v<std::decay_t<decltype(args)>, GroupTokensArgs>) {
          return {};
        } else {
          return make_problem(args);
        }
      },
      arguments.args);
}

}  // namespace rankfold::conformance
