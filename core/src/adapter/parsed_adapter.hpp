// An adapter file taken apart: its tensors grouped by module, ranks and scalings settled.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "adapter/findings.hpp"
#include "adapter/peft_config.hpp"
#include "adapter/tensor_key.hpp"
#include "rankfold/adapter.hpp"
#include "rankfold/safetensors.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

/// The tensors of one module; null where the file has none.
struct LoraModule {
  std::string path;  ///< as the tensors name it
  bool embedding = false;
  bool parameter = false;  ///< adapts a parameter with experts in it (target_parameters)
  const SafetensorsEntry* a = nullptr;
  const SafetensorsEntry* b = nullptr;
  const SafetensorsEntry* bias = nullptr;
  const SafetensorsEntry* base_copy = nullptr;
  std::int64_t rank = 0;
  std::int64_t in = 0;
  std::int64_t out = 0;
  double alpha = 0;
  float scaling = 0;
  bool complete = false;  ///< passed every check
};

/// What a tensor is; `module` indexes ParsedAdapter::modules, -1: none.
struct TensorClass {
  TensorRole role = TensorRole::unknown;
  std::int32_t module = -1;
  const char* why = "";
};

struct ParsedAdapter {
  Safetensors tensors;
  PeftConfig config;
  Findings findings;
  AdapterOptions::Unbound unbound = AdapterOptions::Unbound::refuse;
  std::vector<TensorClass> classes;  ///< one per entry of `tensors`
  std::vector<LoraModule> modules;   ///< in the order of their first tensor
};

/// Fills classes, modules and findings from tensors and config.
void group_tensors(ParsedAdapter& adapter);

/// alpha / rank or alpha / sqrt(rank), in double, rounded once.
float scaling_of(double alpha, std::int64_t rank, bool use_rslora) noexcept;

/// Binds everything of `adapter` to targets that check_targets() accepts.
struct BoundAdapter {
  std::vector<AdapterBinding> bindings;
  std::vector<TensorBinding> report;
  StringStore strings;
  std::int64_t weight_bytes = 0;
};
Status bind_modules(ParsedAdapter& adapter, std::span<const TargetSpec> targets,
                    BoundAdapter& bound);

/// Errors: invalid_argument naming the target and the field.
Status check_targets(std::span<const TargetSpec> targets);

/// Rows and columns of the whole module, before sharding.
inline std::int64_t full_out(const SliceSpec& slice) noexcept {
  return slice.out_full != 0 ? slice.out_full : slice.out;
}
inline std::int64_t full_in(const TargetSpec& target) noexcept {
  return target.in_full != 0 ? target.in_full : target.in;
}

/// Compares rows [row_begin, row_begin + rows of base) of a tensor with the host's weight by value.
/// Errors: invalid_argument naming both shapes, or the first index that differs.
Status compare_base(const SafetensorsEntry& copy, std::int64_t row_begin,
                    const ConstTensorView& base);

}  // namespace detail
RANKFOLD_NAMESPACE_END
