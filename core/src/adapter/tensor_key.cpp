#include "adapter/tensor_key.hpp"

#include <array>

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

namespace {

bool ends_with(std::string_view text, std::string_view end) noexcept {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}
bool contains(std::string_view text, std::string_view part) noexcept {
  return text.find(part) != std::string_view::npos;
}

std::string_view without_prefix(std::string_view name) noexcept {
  for (std::string_view prefix : {"base_model.model.", "base_model."}) {
    if (name.substr(0, prefix.size()) == prefix) return name.substr(prefix.size());
  }
  return name;
}

constexpr const char* kOtherAdapter =
    "an adapter name other than 'default' stands in the tensor's name";

struct Marker {
  std::string_view text;
  TensorRole role;
  TensorRole bias_role;  // of ".bias" behind the marker; unknown: none
  bool parameter;        // no ".weight" behind it
};
constexpr std::array<Marker, 4> kMarkers = {{
    {".lora_A", TensorRole::lora_a, TensorRole::unknown, false},
    {".lora_B", TensorRole::lora_b, TensorRole::lora_bias, false},
    {".lora_embedding_A", TensorRole::embedding_a, TensorRole::unknown, true},
    {".lora_embedding_B", TensorRole::embedding_b, TensorRole::unknown, true},
}};

// `rest`: what stands behind the marker, with its leading dot.
TensorKey with_rest(const Marker& marker, std::string_view path, std::string_view rest) {
  constexpr std::string_view kDefault = ".default";
  if (rest.substr(0, kDefault.size()) == kDefault) rest.remove_prefix(kDefault.size());
  const std::string_view weight = marker.parameter ? "" : ".weight";
  if (rest == weight) return {marker.role, std::string(path), ""};
  if (rest == ".bias" && marker.bias_role != TensorRole::unknown) {
    return {marker.bias_role, std::string(path), ""};
  }
  if (marker.parameter || ends_with(rest, ".weight")) {
    return {TensorRole::refused, std::string(path), kOtherAdapter};
  }
  return {TensorRole::unknown, std::string(path), "no tensor of LoRA has this name"};
}

}  // namespace

TensorKey parse_tensor_key(std::string_view name) {
  const std::string_view key = without_prefix(name);
  for (std::string_view part : {"lora_down", "lora_up"}) {
    if (contains(key, part)) {
      return {TensorRole::refused, "",
              "it follows the naming convention lora_down/lora_up, not PEFT's lora_A/lora_B"};
    }
  }
  if (contains(key, ".lora_magnitude_vector")) {
    return {TensorRole::refused, "", "it is a magnitude vector of DoRA, which is not supported"};
  }
  if (contains(key, ".modules_to_save.")) {
    return {TensorRole::refused, "", "it replaces a whole module, which is not supported"};
  }
  for (const Marker& marker : kMarkers) {
    const std::size_t at = key.rfind(marker.text);
    if (at == std::string_view::npos || at == 0) continue;
    const std::string_view rest = key.substr(at + marker.text.size());
    if (!rest.empty() && rest.front() != '.') continue;
    return with_rest(marker, key.substr(0, at), rest);
  }
  constexpr std::string_view kCopy = ".base_layer.weight";
  if (ends_with(key, kCopy) && key.size() > kCopy.size()) {
    return {TensorRole::base_copy, std::string(key.substr(0, key.size() - kCopy.size())), ""};
  }
  return {TensorRole::unknown, "", "no tensor of LoRA has this name"};
}

std::string_view without_base_layers(std::string_view path) noexcept {
  constexpr std::string_view kNested = ".base_layer";
  while (ends_with(path, kNested)) path.remove_suffix(kNested.size());
  return path;
}

}  // namespace detail
RANKFOLD_NAMESPACE_END
