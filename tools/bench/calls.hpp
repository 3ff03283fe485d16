// One layer's call, whichever operation the point times.
#pragma once

#include <variant>

#include "rankfold/operations.hpp"

namespace rankfold::tools {

using Call = std::variant<ApplyLinearArgs, ApplyExpertsArgs, ForwardArgs, BackwardArgs>;

inline Problem problem_of(const Call& call) {
  return std::visit([](const auto& args) { return make_problem(args); }, call);
}

inline CallOptions& options_of(Call& call) {
  return std::visit([](auto& args) -> CallOptions& { return args.options; }, call);
}

inline Status enqueue(LoraBackend& backend, const Call& call, const Workspace& workspace,
                      Stream stream) {
  struct Run {
    LoraBackend& backend;
    const Workspace& workspace;
    Stream stream;
    Status operator()(const ApplyLinearArgs& args) const {
      return apply_linear(backend, args, workspace, stream);
    }
    Status operator()(const ApplyExpertsArgs& args) const {
      return apply_experts(backend, args, workspace, stream);
    }
    Status operator()(const ForwardArgs& args) const {
      return forward(backend, args, workspace, stream);
    }
    Status operator()(const BackwardArgs& args) const {
      return backward(backend, args, workspace, stream);
    }
  };
  return std::visit(Run{backend, workspace, stream}, call);
}

}  // namespace rankfold::tools
