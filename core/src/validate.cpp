#include "rankfold/validate.hpp"

#include "validate_workspace.hpp"

RANKFOLD_NAMESPACE_BEGIN
#define V(A) \
  Status validate(const A&, Device) noexcept { return {}; }
V(GroupTokensArgs)
#undef V
#define V(A)                                                                                \
  Status validate(const A&, Device) noexcept { return {}; }                                 \
  template Status detail::validate_workspace(const A&, Op, const Workspace&, std::uint64_t, \
                                             Device) noexcept;
namespace detail {
template <class Args>
Status validate_workspace(const Args&, Op, const Workspace&, std::uint64_t, Device) noexcept {
  return {};
}
}  // namespace detail
V(ShrinkArgs)
V(ExpandArgs) V(ApplyLinearArgs) V(GatherShrinkArgs) V(ApplyEmbeddingArgs) V(ShrinkExpertsArgs)
    V(ExpandExpertsArgs) V(ApplyExpertsArgs) V(ForwardArgs) V(BackwardArgs) V(ForwardEmbeddingArgs)
        V(BackwardEmbeddingArgs) V(BackwardExpertsArgs)
#undef V
            Status validate(const TableShape&) noexcept {
  return {};
}
Status validate(const AdapterEntry&, const TableShape&, std::int32_t) noexcept { return {}; }
RANKFOLD_NAMESPACE_END
