// The configurations of each strategy: what the built-in choice of tiles and splits is changed to.
// Kernels are the same; only what the host decides before a launch is.
#pragma once

#include <cstdint>

#include "linear.hpp"
#include "rankfold/problem.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

/// Version of kernels and configurations: files of `rankfold tune` are for one. Raise it when a
/// change makes old measurements mislead, or gives a name another meaning.
inline constexpr std::int32_t kKernelsVersion = 3;

/// Names of the configurations in order, separated by "; ". A static string.
const char* configuration_names(Op op, Strategy strategy);

/// Whether the problem's configuration is one of the strategy, and batch_invariant leaves the
/// choice open. Else unsupported with the reason.
Status check_configuration(const Problem& problem, Strategy strategy);

/// The built-in plan of a problem as its configuration changes it. Unsupported where that cannot
/// be, or would change nothing.
Result<LinearPlan> configure(const Problem& problem, const DeviceTraits& traits, LinearPlan plan);

/// What a configuration of experts says: rows of a pair that blocks of the fused kernel are shaped
/// for (0 few, 1 some, 2 many; kRowBlocks: pairs.hpp instead; -1 as built in), and blocks for the
/// rows of a pair, of kRowBlocks for the columns of a slice (0 as built in).
inline constexpr int kRowBlocks = 3;
struct ExpertsConfiguration {
  int size = -1;
  int parts = 0;
};
ExpertsConfiguration experts_configuration(const Problem& problem) noexcept;

/// Times `times`, then over `over`.
struct Ratio {
  int times = 1;
  int over = 1;
};
/// Of the numbers of chunks of rows of both passes of a tensor-core backward.
struct BackwardConfiguration {
  Ratio dy;
  Ratio x;
};
BackwardConfiguration backward_configuration(const Problem& problem) noexcept;

}  // namespace cuda
RANKFOLD_NAMESPACE_END
