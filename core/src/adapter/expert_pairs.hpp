// Pairs that adapt a parameter with several experts in it (target_parameters).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "adapter/parsed_adapter.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

/// Where a pair belongs. PEFT's keys name the module only: the parameter is found by shape.
struct ExpertFit {
  std::int32_t target = 0;
  std::string parameter;  ///< SliceSpec::module
  /// A has `out` columns and B `in` rows: B A of the file is the delta transposed, so the target's
  /// A is B transposed and its B is A transposed.
  bool swapped = false;
};

/// Nothing: no target of experts has a parameter of this module. Errors: malformed_file (no
/// parameter of this shape), invalid_argument (several, or one that fits both ways round).
Result<std::optional<ExpertFit>> find_expert_parameter(const LoraModule& module,
                                                       std::span<const TargetSpec> targets);

/// a and b of one expert: A [E * rank, in] expert-major, B [out, rank * E] expert fastest.
void set_expert_views(const LoraModule& module, const TargetSpec& target, const SliceSpec& slice,
                      std::int32_t expert, bool swapped, AdapterBinding& binding);

}  // namespace detail
RANKFOLD_NAMESPACE_END
