#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "adapter/parsed_adapter.hpp"
#include "rankfold/adapter_table.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

namespace {

Status invalid(const std::string& text) { return Status(StatusCode::invalid_argument, text); }

// [begin, begin + size) of full, where full 0 means size and allows no begin.
bool is_window(std::int64_t begin, std::int64_t size, std::int64_t full) noexcept {
  if (full == 0) return begin == 0;
  return begin >= 0 && size <= full && begin <= full - size;
}

Status check_base_weight(const TargetSpec& target, const SliceSpec& slice,
                         const std::string& name) {
  const ConstTensorView& base = slice.base_weight;
  if (base.data == nullptr && base.num_dims == 0) return {};
  const bool embedding = target.kind == TargetKind::embedding;
  const std::int64_t rows = embedding ? full_in(target) : full_out(slice);
  const std::int64_t columns = embedding ? full_out(slice) : full_in(target);
  const bool readable = is_activation(base.dtype) || base.dtype == DType::f64;
  if (base.data == nullptr || base.num_dims != 2 || base.sizes[0] != rows ||
      base.sizes[1] != columns || !readable || base.device.type != DeviceType::cpu) {
    return invalid(name + ".base_weight is " + to_string(base.dtype) + " " +
                   shape_text(base.sizes, std::clamp(base.num_dims, 0, kMaxDims)) +
                   ", it must be host memory of f32, f16, bf16 or f64 and of shape [" +
                   std::to_string(rows) + ", " + std::to_string(columns) + "]");
  }
  return {};
}

Status check_slice(const TargetSpec& target, std::int32_t index, const std::string& target_name) {
  const SliceSpec& slice = target.slices[index];
  const std::string name = target_name + ".slices[" + std::to_string(index) + "]";
  if (slice.module == nullptr || slice.module[0] == '\0') {
    return invalid(name + ".module is null or empty, it must be the path of a module");
  }
  if (slice.out < 1) {
    return invalid(name + ".out is " + std::to_string(slice.out) + ", it must be at least 1");
  }
  if (!is_window(slice.out_begin, slice.out, slice.out_full)) {
    return invalid(name + ": rows [" + std::to_string(slice.out_begin) + ", +" +
                   std::to_string(slice.out) + ") do not fit out_full " +
                   std::to_string(slice.out_full));
  }
  if (target.fused_module != nullptr && std::string_view(target.fused_module) == slice.module) {
    return invalid(name + ".module is the target's fused_module, too: " + quote(slice.module) +
                   "; slices that are windows of one module need no fused_module");
  }
  return check_base_weight(target, slice, name);
}

Status check_target(const TargetSpec& target, const std::string& name) {
  if (target.kind != TargetKind::linear && target.kind != TargetKind::embedding &&
      target.kind != TargetKind::experts) {
    return invalid(name + ".kind is " + std::to_string(static_cast<int>(target.kind)) +
                   ", it must be linear, embedding or experts");
  }
  const std::int32_t most = target.kind == TargetKind::embedding ? 1 : kMaxSlices;
  if (target.num_slices < 1 || target.num_slices > most || target.slices == nullptr) {
    return invalid(name + ".num_slices is " + std::to_string(target.num_slices) +
                   ", it must be from 1 to " + std::to_string(most) + " with slices given");
  }
  if (target.in < 1) {
    return invalid(name + ".in is " + std::to_string(target.in) + ", it must be at least 1");
  }
  if (!is_window(target.in_begin, target.in, target.in_full)) {
    return invalid(name + ": columns [" + std::to_string(target.in_begin) + ", +" +
                   std::to_string(target.in) + ") do not fit in_full " +
                   std::to_string(target.in_full));
  }
  if (target.num_experts < 1 || (target.kind != TargetKind::experts && target.num_experts != 1)) {
    return invalid(name + ".num_experts is " + std::to_string(target.num_experts) +
                   ", it must be 1, or at least 1 for a target of experts");
  }
  if (!std::isfinite(target.delta_scale)) {
    return invalid(name + ".delta_scale is not finite");
  }
  for (std::int32_t i = 0; i < target.num_slices; ++i) {
    if (Status status = check_slice(target, i, name); !status.ok()) return status;
  }
  return {};
}

}  // namespace

Status check_targets(std::span<const TargetSpec> targets) {
  std::set<std::string_view> keys;
  std::map<std::string_view, std::size_t> owners;  // of module paths
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const TargetSpec& target = targets[i];
    if (target.key == nullptr || target.key[0] == '\0') {
      return invalid("targets[" + std::to_string(i) + "].key is null or empty");
    }
    const std::string name = "target " + quote(target.key);
    if (!keys.insert(target.key).second) return invalid(name + " appears twice");
    if (Status status = check_target(target, name); !status.ok()) return status;
    const auto claim = [&](const char* path) -> Status {
      const auto [owner, is_new] = owners.emplace(path, i);
      if (is_new || owner->second == i) return {};
      return invalid("module " + quote(path) + " is claimed by two targets, " +
                     quote(targets[owner->second].key) + " and " + quote(target.key));
    };
    for (std::int32_t s = 0; s < target.num_slices; ++s) {
      if (Status status = claim(target.slices[s].module); !status.ok()) return status;
    }
    if (target.fused_module != nullptr) {
      if (Status status = claim(target.fused_module); !status.ok()) return status;
    }
  }
  return {};
}

}  // namespace detail
RANKFOLD_NAMESPACE_END
