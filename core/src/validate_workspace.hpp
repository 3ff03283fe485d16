// Checks that need the workspace's size: after validate(), before anything is enqueued.
#pragma once

#include <cstdint>

#include "rankfold/arguments.hpp"
#include "rankfold/status.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

/// ok, workspace_too_small (have and need), or invalid_argument (null, alignment, device, overlap
/// with a tensor of the call).
template <class Args>
Status validate_workspace(const Args& args, Op op, const Workspace& workspace, std::uint64_t need,
                          Device device) noexcept;

}  // namespace detail
RANKFOLD_NAMESPACE_END
