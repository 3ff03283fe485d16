// The CUDA backend, beside the registry. No type of the CUDA toolkit appears here: a Stream's
// handle is the cudaStream_t itself, so a stream of the host's own is Stream{stream}, and an event
// is a cudaEvent_t.
#pragma once

#include "rankfold/export.hpp"
#include "rankfold/registry.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

/// The descriptor under which the registry knows this backend: name "cuda".
RANKFOLD_EXPORT const BackendDescriptor& descriptor() noexcept;

}  // namespace cuda
RANKFOLD_NAMESPACE_END
