// Weights by (target, slice, expert) put together to the modules of an adapter file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rankfold/save_adapter.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

/// A tensor as a file stores it: dense, row-major. The bytes are the caller's own where they lie so
/// already, else a copy.
struct DenseTensor {
  DType dtype = DType::f32;
  std::int32_t num_dims = 0;
  std::int64_t sizes[2] = {};
  const void* borrowed = nullptr;
  std::vector<std::byte> copied;

  bool given() const noexcept { return num_dims != 0; }
  const void* data() const noexcept { return borrowed != nullptr ? borrowed : copied.data(); }
};

struct SavedModule {
  TargetKind kind = TargetKind::linear;
  std::string path;       ///< of the module, or of the parameter: what patterns see
  std::string pair_path;  ///< as the tensors name it: differs for parameters only
  std::int64_t rank = 0;
  double alpha = 0;
  DenseTensor a, b, bias;
};

/// Checks everything and gathers the modules in the order of targets and slices.
/// Errors: as save_adapter().
Result<std::vector<SavedModule>> collect_modules(std::span<const TargetSpec> targets,
                                                 std::span<const AdapterWeights> weights);

/// Of one (target, slice, expert) alone. `name` stands in the text.
Status check_weights(const TargetSpec& target, const AdapterWeights& weights,
                     const std::string& name);

/// adapter_config.json of the modules. Throws nlohmann::json::exception where a text is not UTF-8.
std::string make_peft_config(std::span<const SavedModule> modules,
                             const SaveAdapterOptions& options);

}  // namespace detail
RANKFOLD_NAMESPACE_END
