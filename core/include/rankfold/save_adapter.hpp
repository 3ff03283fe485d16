// Adapters to files: weights in host memory become a PEFT directory.
//
// The host says where the weights belong with the same targets that it binds adapters to, so what
// is saved is read back by load_adapter() with the same targets, bit for bit.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "rankfold/export.hpp"
#include "rankfold/status.hpp"
#include "rankfold/target_spec.hpp"
#include "rankfold/tensor_view.hpp"

RANKFOLD_NAMESPACE_BEGIN

/// What a module's scaling is made of: alpha / rank, or alpha / sqrt(rank) (rsLoRA: Kalajdzievski,
/// arXiv:2312.03732).
enum class ScalingRule : std::int32_t { rank = 0, sqrt_rank = 1 };

/// The weights of one (target, slice, expert), in host memory. Plain data, read during the call.
struct AdapterWeights {
  std::int32_t target = 0;  ///< index into the targets
  std::int32_t slice = 0;
  std::int32_t expert = 0;
  std::int32_t reserved = 0;
  /// Not negative, finite in float32. The target's delta_scale is the host's own and not part of a
  /// file.
  double alpha = 0;
  ConstTensorView a =
      {};  ///< [rank, in] f32, f16 or bf16, any strides; embedding: or fewer columns
  ConstTensorView b = {};     ///< [out, rank] f32, f16 or bf16, any strides
  ConstTensorView bias = {};  ///< [out] f32, f16 or bf16, of linear targets, or not given
};
static_assert(std::is_trivially_copyable_v<AdapterWeights> &&
              std::is_standard_layout_v<AdapterWeights>);

/// What adapter_config.json says beside ranks, alphas and modules.
struct SaveAdapterOptions {
  ScalingRule scaling = ScalingRule::rank;  ///< of all modules
  std::int32_t reserved = 0;
  double dropout = 0;                ///< lora_dropout, in [0, 1): how it was trained; not applied
  const char* base_model = nullptr;  ///< base_model_name_or_path, UTF-8, or null
  const char* task_type = nullptr;   ///< "CAUSAL_LM", ..., or null
};
static_assert(std::is_trivially_copyable_v<SaveAdapterOptions> &&
              std::is_standard_layout_v<SaveAdapterOptions>);

/// Writes directory/adapter_config.json and directory/adapter_model.safetensors; makes the
/// directory where there is none.
///
/// Every module of a slice becomes a pair of its own under its own path, with A as often as slices
/// share it. Slices that are windows of one module are joined, with one A. Parameters with experts
/// become A [num_experts * rank, in] and B [out, rank * num_experts], expert fastest, the other way
/// round where the target's orientation is in_out; several parameters of a module are nested as
/// `base_layer`, the first of the targets innermost, unless every slice says its pair_path. r and
/// lora_alpha are the most frequent of the modules', rank_pattern and alpha_pattern name the rest.
/// One bias makes lora_bias true, and zeros of the modules that have none.
///
/// Both files are written beside their names first and then take their places, so that a failure
/// leaves what was there; a reader never meets a new file beside an old one.
///
/// Errors, before anything is written: invalid_argument naming the argument (no weights; an index;
/// a (target, slice, expert) twice; shape, dtype, device or null of a view; alpha; windows or
/// experts that are missing or differ in A, rank, alpha or dtype; a sharded target; the orientation
/// of experts left to the shapes); unsupported: what PEFT has no place for (a bias beside
/// embeddings or experts), what load_adapter() would refuse (a name too long). While writing:
/// invalid_argument naming the path and the reason.
RANKFOLD_EXPORT Status save_adapter(std::string_view directory, std::span<const TargetSpec> targets,
                                    std::span<const AdapterWeights> weights,
                                    const SaveAdapterOptions& options = {});

RANKFOLD_NAMESPACE_END
