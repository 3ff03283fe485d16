#include "validate_workspace.hpp"

#include <cinttypes>

#include "validate_check.hpp"
#include "validate_overlap.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

template <class Args>
Status validate_workspace(const Args& args, Op op, const Workspace& workspace, std::uint64_t need,
                          Device device) noexcept {
  Status status;
  if (need == 0) return status;  // nothing of it is touched
  Check check(op, device, &status);
  if (workspace.bytes < need) {
    check.fail(StatusCode::workspace_too_small,
               "workspace has %" PRIu64 " bytes; it should have at least %" PRIu64
               " (workspace_bytes())",
               workspace.bytes, need);
  } else if (workspace.data == nullptr) {
    check.fail(StatusCode::invalid_argument,
               "workspace is null; it should point to %" PRIu64 " bytes", need);
  } else if ((reinterpret_cast<std::uintptr_t>(workspace.data) & 15u) != 0) {
    check.fail(StatusCode::invalid_argument, "workspace is at %p; it should be aligned to 16 bytes",
               workspace.data);
  } else if (check.device("workspace", workspace.device)) {
    (void)ByteRanges(args).check_workspace(check, workspace);
  }
  return status;
}

#define RANKFOLD_INSTANTIATE(Args)                                                     \
  template Status validate_workspace(const Args&, Op, const Workspace&, std::uint64_t, \
                                     Device) noexcept;
RANKFOLD_INSTANTIATE(ShrinkArgs)
RANKFOLD_INSTANTIATE(ExpandArgs)
RANKFOLD_INSTANTIATE(ApplyLinearArgs)
RANKFOLD_INSTANTIATE(GatherShrinkArgs)
RANKFOLD_INSTANTIATE(ApplyEmbeddingArgs)
RANKFOLD_INSTANTIATE(ShrinkExpertsArgs)
RANKFOLD_INSTANTIATE(ExpandExpertsArgs)
RANKFOLD_INSTANTIATE(ApplyExpertsArgs)
RANKFOLD_INSTANTIATE(ForwardArgs)
RANKFOLD_INSTANTIATE(BackwardArgs)
RANKFOLD_INSTANTIATE(ForwardEmbeddingArgs)
RANKFOLD_INSTANTIATE(BackwardEmbeddingArgs)
RANKFOLD_INSTANTIATE(BackwardExpertsArgs)
#undef RANKFOLD_INSTANTIATE

}  // namespace detail
RANKFOLD_NAMESPACE_END
