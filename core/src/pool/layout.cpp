// The pool's targets: checked and copied from the host's description.
#include <limits>
#include <set>
#include <string_view>

#include "pool/plan.hpp"
#include "rankfold/validate.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

namespace {

Status wrong(const char* what, long long is, const char* should) {
  return Status::format(StatusCode::invalid_argument, "pool: %s is %lld; it should be %s", what, is,
                        should);
}

Status check_options(const PoolOptions& options) {
  if (options.num_slots < 1) return wrong("num_slots", options.num_slots, "at least 1");
  if (options.max_rank < 1) return wrong("max_rank", options.max_rank, "at least 1");
  const struct {
    const char* name;
    DType dtype;
  } dtypes[] = {{"a_dtype", options.a_dtype},
                {"b_dtype", options.b_dtype},
                {"x_dtype", options.x_dtype},
                {"y_dtype", options.y_dtype}};
  for (const auto& [name, dtype] : dtypes) {
    if (is_activation(dtype)) continue;
    return Status::format(StatusCode::invalid_argument,
                          "pool: %s is %s; it should be f32, f16 or bf16", name, to_string(dtype));
  }
  if (options.narrowing != Narrowing::refuse && options.narrowing != Narrowing::allow) {
    return wrong("narrowing", static_cast<int>(options.narrowing), "refuse (0) or allow (1)");
  }
  return {};
}

Status wrong(const TargetSpec& spec, const char* what, long long is, const char* should) {
  return Status::format(StatusCode::invalid_argument,
                        "pool: %s of target '%s' is %lld; it should be %s", what, spec.key, is,
                        should);
}

Status check_target(const TargetSpec& spec) {
  if (spec.num_slices < 1 || spec.num_slices > kMaxSlices) {
    return wrong(spec, "num_slices", spec.num_slices, "1 to 16");
  }
  if (spec.slices == nullptr) {
    return Status::format(StatusCode::invalid_argument,
                          "pool: slices of target '%s' is null; it should be %d slices", spec.key,
                          spec.num_slices);
  }
  if (spec.in < 1) return wrong(spec, "in", spec.in, "at least 1");
  for (std::int32_t i = 0; i < spec.num_slices; ++i) {
    if (spec.slices[i].out < 1) return wrong(spec, "out", spec.slices[i].out, "at least 1");
  }
  if (spec.kind == TargetKind::experts) {
    if (spec.num_experts < 1) return wrong(spec, "num_experts", spec.num_experts, "at least 1");
  } else if (spec.num_experts != 1) {
    return wrong(spec, "num_experts", spec.num_experts, "1, since it is no bank of experts");
  }
  return {};
}

}  // namespace

Result<PoolLayout> make_layout(std::span<const TargetSpec> targets, const PoolOptions& options) {
  if (Status status = check_options(options); !status.ok()) return status;
  if (targets.empty()) {
    return Status(StatusCode::invalid_argument, "pool: targets is empty; it should name some");
  }
  PoolLayout layout;
  std::set<std::string_view> keys;
  for (const TargetSpec& spec : targets) {
    if (spec.key == nullptr || spec.key[0] == '\0') {
      return Status::format(StatusCode::invalid_argument,
                            "pool: key of target %zu is empty; it should be a unique name",
                            layout.targets.size());
    }
    if (!keys.insert(spec.key).second) {
      return Status::format(StatusCode::invalid_argument,
                            "pool: key '%s' stands twice; keys of targets should be unique",
                            spec.key);
    }
    if (Status status = check_target(spec); !status.ok()) return status;
    PoolTarget target;
    target.key = spec.key;
    target.kind = spec.kind;
    target.shape.num_slots = options.num_slots;
    target.shape.num_experts = spec.num_experts;
    target.shape.num_slices = spec.num_slices;
    target.shape.max_rank = options.max_rank;
    target.shape.in = spec.in;
    for (std::int32_t i = 0; i < spec.num_slices; ++i) target.shape.out[i] = spec.slices[i].out;
    target.shape.a_dtype = options.a_dtype;
    target.shape.b_dtype = options.b_dtype;
    target.first_entry = layout.slot_entries;
    if (Status status = validate(target.shape); !status.ok()) {
      return Status::format(status.code(), "pool: target '%s': %s", spec.key, status.message());
    }
    layout.slot_entries += std::int64_t{spec.num_experts} * spec.num_slices;
    layout.targets.push_back(std::move(target));
    constexpr auto kEntry = static_cast<std::int64_t>(sizeof(AdapterEntry));
    if (layout.slot_entries > INT64_MAX / kEntry / options.num_slots) {
      return Status::format(StatusCode::invalid_argument,
                            "pool: num_slots is %d and a slot has %lld entries up to target '%s'; "
                            "all together should be below 2^63 bytes",
                            options.num_slots, static_cast<long long>(layout.slot_entries),
                            spec.key);
    }
  }
  return layout;
}

}  // namespace detail
RANKFOLD_NAMESPACE_END
