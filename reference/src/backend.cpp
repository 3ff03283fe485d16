#include "rankfold/reference.hpp"
RANKFOLD_NAMESPACE_BEGIN
namespace reference {
const BackendDescriptor& descriptor() noexcept { static const BackendDescriptor d{}; return d; }
}
RANKFOLD_NAMESPACE_END
