#include <algorithm>
#include <cmath>
#include <limits>

#include "adapter/parsed_adapter.hpp"
#include "adapter/saved_modules.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

namespace {

Status invalid(const std::string& text) { return Status(StatusCode::invalid_argument, text); }

std::string view_text(const ConstTensorView& view) {
  return std::string(to_string(view.dtype)) + " " +
         shape_text(view.sizes, std::clamp(view.num_dims, 0, kMaxDims));
}

// What holds for A, B and bias alike; `wanted` is the shape in words.
Status check_view(const ConstTensorView& view, int num_dims, const std::string& name,
                  const std::string& wanted) {
  if (view.num_dims == 0 && view.data == nullptr) {
    return invalid(name + " is not given, it must be " + wanted);
  }
  if (view.data == nullptr) return invalid(name + " has null data");
  if (view.num_dims != num_dims || !is_activation(view.dtype)) {
    return invalid(name + " is " + view_text(view) + ", it must be f32, f16 or bf16 " + wanted);
  }
  if (view.device.type != DeviceType::cpu) {
    return invalid(name + " is on a device of type " +
                   std::to_string(static_cast<int>(view.device.type)) +
                   ", it must be in host memory");
  }
  return {};
}

Status check_bias(const TargetSpec& target, const AdapterWeights& weights, std::int64_t out,
                  const std::string& name) {
  const ConstTensorView& bias = weights.bias;
  if (bias.num_dims == 0 && bias.data == nullptr) return {};
  if (target.kind != TargetKind::linear) {
    return Status(StatusCode::unsupported, name + ".bias is given for target " + quote(target.key) +
                                               ": PEFT has a bias at linear layers only");
  }
  const std::string wanted = "[" + std::to_string(out) + "]";
  if (Status status = check_view(bias, 1, name + ".bias", wanted); !status.ok()) return status;
  if (bias.sizes[0] != out) {
    return invalid(name + ".bias is " + view_text(bias) + ", it must be " + wanted);
  }
  return {};
}

}  // namespace

Status check_weights(const TargetSpec& target, const AdapterWeights& weights,
                     const std::string& name) {
  const SliceSpec& slice = target.slices[weights.slice];
  const std::string in = std::to_string(target.in);
  const std::string out = std::to_string(slice.out);
  const ConstTensorView& a = weights.a;
  const ConstTensorView& b = weights.b;
  if (Status status = check_view(a, 2, name + ".a", "[rank, " + in + "]"); !status.ok()) {
    return status;
  }
  if (Status status = check_view(b, 2, name + ".b", "[" + out + ", rank]"); !status.ok()) {
    return status;
  }
  const std::int64_t rank = a.sizes[0];
  if (rank < 1 || rank > std::numeric_limits<std::int32_t>::max()) {
    return invalid(name + ".a is " + view_text(a) + ", its rank must be from 1 to 2147483647");
  }
  const bool fits = target.kind == TargetKind::embedding
                        ? a.sizes[1] >= 1 && a.sizes[1] <= target.in
                        : a.sizes[1] == target.in;
  if (!fits) {
    return invalid(name + ".a is " + view_text(a) + ", target " + quote(target.key) + " has in " +
                   in);
  }
  if (b.sizes[0] != slice.out || b.sizes[1] != rank) {
    return invalid(name + ".b is " + view_text(b) + ", it must be [" + out + ", " +
                   std::to_string(rank) + "]");
  }
  if (!std::isfinite(weights.alpha) || weights.alpha < 0 ||
      weights.alpha > std::numeric_limits<float>::max()) {
    return invalid(name + ".alpha is " + std::to_string(weights.alpha) +
                   ", it must be a number from 0 to the largest of float32");
  }
  return check_bias(target, weights, slice.out, name);
}

}  // namespace detail
RANKFOLD_NAMESPACE_END
