// TargetSpec: how a host describes the places of its model that take deltas.
#pragma once

#include <cstdint>
#include <type_traits>

#include "rankfold/export.hpp"
#include "rankfold/tensor_view.hpp"

RANKFOLD_NAMESPACE_BEGIN

/// What the host has at a target: which operation adds its deltas.
enum class TargetKind : std::int32_t { linear = 0, embedding = 1, experts = 2 };

/// One packed projection of a target. Strings are copied by whoever takes the spec.
struct SliceSpec {
  /// Path of the module as the model's own state dict names it, without prefixes of PEFT:
  /// "model.layers.0.self_attn.q_proj". Experts: the parameter's path,
  /// "model.layers.0.mlp.experts.gate_up_proj".
  const char* module = nullptr;
  /// Width of this slice here (after sharding).
  std::int64_t out = 0;
  /// Sharding by rows of B: this slice is rows [out_begin, out_begin + out) of a module of out_full
  /// rows. out_full 0: not sharded (out_full = out). Several slices of one module (gate and up of
  /// a fused parameter) are windows of it, too.
  std::int64_t out_begin = 0;
  std::int64_t out_full = 0;
  /// Host memory of f32, f16, bf16 or f64, the whole base weight as the module stores it (linear
  /// [out_full, in_full], embedding [in_full, out_full]), or not given: what base copies of a file
  /// are compared with, value by value.
  ConstTensorView base_weight = {};
  /// Experts: the path of the file's pair for this parameter ("model.layers.0.mlp.experts" or
  /// "model.layers.0.mlp.experts.base_layer"), for a module with several parameters of one shape;
  /// null: found by shape.
  const char* pair_path = nullptr;
};

/// Whether this shard adds the bias of a lora_bias adapter (one shard of a row-parallel layer
/// only).
enum class BiasOwner : std::int32_t { here = 0, elsewhere = 1 };

/// Which way round the product B A of a file's pair lies for a routed parameter: [out, in], or
/// [in, out], as PEFT writes it for parameters that it takes for transposed. by_shape finds out,
/// except where in == out: such a file is refused until the host says which.
enum class ExpertOrientation : std::int32_t { by_shape = 0, out_in = 1, in_out = 2 };

/// One target of the host's model. Plain data, copied by whoever takes it.
struct TargetSpec {
  const char* key = nullptr;  ///< the host's own name of the target, unique: "layers.0.qkv"
  TargetKind kind = TargetKind::linear;
  std::int32_t num_slices = 0;
  const SliceSpec* slices = nullptr;
  std::int64_t in = 0;  ///< width of x here (after sharding); embedding: size of the vocabulary
  /// Sharding by columns of A: columns [in_begin, in_begin + in) of in_full. in_full 0: not
  /// sharded.
  std::int64_t in_begin = 0;
  std::int64_t in_full = 0;
  std::int32_t num_experts = 1;
  /// Path of the module that packs all slices ("model.layers.0.self_attn.qkv_proj"), or null: a
  /// pair trained on it gives every slice the same A, and B split by rows in slice order.
  const char* fused_module = nullptr;
  BiasOwner bias_owner = BiasOwner::here;
  ExpertOrientation orientation = ExpertOrientation::by_shape;
  float delta_scale = 1.0f;  ///< multiplies every scaling of this target
  std::int32_t reserved = 0;
};
static_assert(std::is_trivially_copyable_v<TargetSpec> && std::is_standard_layout_v<TargetSpec>);

RANKFOLD_NAMESPACE_END
