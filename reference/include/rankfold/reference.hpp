// The reference backend, beside the registry: for hosts that want it without RANKFOLD_BACKEND.
#pragma once

#include "rankfold/export.hpp"
#include "rankfold/registry.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

/// The descriptor under which the registry knows this backend: name "reference", alias "cpu".
RANKFOLD_EXPORT const BackendDescriptor& descriptor() noexcept;

}  // namespace reference
RANKFOLD_NAMESPACE_END
