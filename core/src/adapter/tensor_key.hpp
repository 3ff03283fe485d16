// What the name of a tensor in an adapter file says.
#pragma once

#include <string>
#include <string_view>

#include "rankfold/export.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

enum class TensorRole {
  lora_a,
  lora_b,
  lora_bias,
  embedding_a,
  embedding_b,
  base_copy,
  refused,  ///< part of a method or a convention that is not supported
  unknown
};

struct TensorKey {
  TensorRole role = TensorRole::unknown;
  std::string path;      ///< module, without the prefixes of PEFT; base_layer kept
  const char* why = "";  ///< refused and unknown: the reason
};

/// Splits a name into module path and role. "base_model.model." or "base_model." in front and
/// ".default" behind are taken off; of the two prefixes the longer one, where it fits.
TensorKey parse_tensor_key(std::string_view name);

/// The path without trailing ".base_layer"s, which PEFT nests one into another when several
/// parameters of a module are adapted.
std::string_view without_base_layers(std::string_view path) noexcept;

}  // namespace detail
RANKFOLD_NAMESPACE_END
