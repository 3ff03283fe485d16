#include <algorithm>
#include <map>

#include "adapter/parsed_adapter.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

namespace {

// Rows [begin, begin + rows) and columns [column, column + columns) of a dense matrix of the file.
ConstTensorView window(const SafetensorsEntry& entry, std::int64_t begin, std::int64_t rows,
                       std::int64_t column, std::int64_t columns) noexcept {
  const std::int64_t width = entry.sizes[1];
  const std::int64_t offset =
      (begin * width + column) * static_cast<std::int64_t>(size_of(entry.dtype));
  return const_matrix(static_cast<const std::byte*>(entry.data) + offset, entry.dtype, rows,
                      columns, {}, width);
}

ConstTensorView vector_window(const SafetensorsEntry& entry, std::int64_t begin,
                              std::int64_t size) noexcept {
  const std::int64_t offset = begin * static_cast<std::int64_t>(size_of(entry.dtype));
  return const_vector(static_cast<const std::byte*>(entry.data) + offset, entry.dtype, size);
}

struct Place {
  std::int32_t target;
  bool fused;
};

class Binder {
 public:
  Binder(ParsedAdapter& adapter, std::span<const TargetSpec> targets, BoundAdapter& bound)
      : adapter_(adapter), targets_(targets), bound_(bound) {}

  Status run() {
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      const auto index = static_cast<std::int32_t>(i);
      for (std::int32_t s = 0; s < targets_[i].num_slices; ++s) {
        places_.emplace(targets_[i].slices[s].module, Place{index, false});
      }
      if (targets_[i].fused_module != nullptr) {
        places_.emplace(targets_[i].fused_module, Place{index, true});
      }
    }
    outcomes_.resize(adapter_.modules.size());
    std::size_t num_bound = 0;
    for (std::size_t i = 0; i < adapter_.modules.size(); ++i) {
      if (Status status = bind_module(adapter_.modules[i], outcomes_[i]); !status.ok()) {
        return status;
      }
      num_bound += outcomes_[i].target >= 0 ? 1 : 0;
    }
    if (Status status = check_unbound(num_bound); !status.ok()) return status;
    sort_bindings();
    write_report();
    return {};
  }

 private:
  struct Outcome {
    std::int32_t target = -1;
    std::string detail = "no target has this module";
    std::string copy_detail;
  };

  static std::string title(const LoraModule& module) { return "module " + quote(module.path); }
  std::string title(std::int32_t target) const {
    return "target " + quote(targets_[static_cast<std::size_t>(target)].key);
  }

  Status mismatch(const LoraModule& module, std::int32_t target, const SafetensorsEntry& entry,
                  const std::string& wanted) const {
    return Status(StatusCode::malformed_file, title(module) + ": tensor " + quote(entry.name) +
                                                  " has shape " + shape_text(entry) + ", " +
                                                  title(target) + " needs " + wanted);
  }

  Status bind_module(const LoraModule& module, Outcome& outcome) {
    if (module.parameter) {
      return Status(StatusCode::unsupported,
                    title(module) +
                        " adapts parameters of experts (target_parameters), which "
                        "cannot be bound yet");
    }
    const auto found = places_.find(module.path);
    if (found == places_.end()) return {};
    const Place place = found->second;
    const TargetSpec& target = targets_[static_cast<std::size_t>(place.target)];
    const bool embedding = target.kind == TargetKind::embedding;
    if (target.kind == TargetKind::experts || module.embedding != embedding) {
      return Status(StatusCode::malformed_file,
                    title(module) + " is " +
                        (module.embedding ? "an embedding" : "a linear layer") + " in the file, " +
                        title(place.target) + " is of another kind");
    }
    if (Status status = check_in(module, place.target); !status.ok()) return status;
    outcome.target = place.target;
    outcome.detail = place.fused ? "all slices" : "";
    if (Status status = place.fused ? bind_fused(module, place.target)
                                    : bind_slices(module, place.target, outcome.detail);
        !status.ok()) {
      return status;
    }
    return compare_copy(module, place, outcome.copy_detail);
  }

  Status check_in(const LoraModule& module, std::int32_t index) const {
    const TargetSpec& target = targets_[static_cast<std::size_t>(index)];
    const std::int64_t full = full_in(target);
    const std::string rank = std::to_string(module.rank);
    if (target.kind == TargetKind::embedding) {
      if (module.in <= full) return {};
      return mismatch(module, index, *module.a,
                      "at most " + std::to_string(full) + " columns, one a word");
    }
    if (module.in == full) return {};
    return mismatch(module, index, *module.a, "[" + rank + ", " + std::to_string(full) + "]");
  }

  Status bind_slices(const LoraModule& module, std::int32_t index, std::string& detail) {
    const TargetSpec& target = targets_[static_cast<std::size_t>(index)];
    for (std::int32_t s = 0; s < target.num_slices; ++s) {
      const SliceSpec& slice = target.slices[s];
      if (module.path != slice.module) continue;
      if (module.out != full_out(slice)) {
        return mismatch(
            module, index, *module.b,
            "[" + std::to_string(full_out(slice)) + ", " + std::to_string(module.rank) + "]");
      }
      detail += (detail.empty() ? "slice " : ", slice ") + std::to_string(s);
      if (Status status = add(module, index, s, slice.out_begin); !status.ok()) return status;
    }
    return {};
  }

  Status bind_fused(const LoraModule& module, std::int32_t index) {
    const TargetSpec& target = targets_[static_cast<std::size_t>(index)];
    std::int64_t rows = 0;
    for (std::int32_t s = 0; s < target.num_slices; ++s) rows += full_out(target.slices[s]);
    if (module.out != rows) {
      return mismatch(module, index, *module.b,
                      "[" + std::to_string(rows) + ", " + std::to_string(module.rank) +
                          "], the rows of all slices");
    }
    rows = 0;
    for (std::int32_t s = 0; s < target.num_slices; ++s) {
      const SliceSpec& slice = target.slices[s];
      if (Status status = add(module, index, s, rows + slice.out_begin); !status.ok()) {
        return status;
      }
      rows += full_out(slice);
    }
    return {};
  }

  // `row`: the first row of B that belongs to the slice.
  Status add(const LoraModule& module, std::int32_t index, std::int32_t slice, std::int64_t row) {
    const auto [owner, is_new] = owners_.emplace(std::pair(index, slice), &module);
    if (!is_new) {
      return Status(StatusCode::malformed_file, title(module) + " and " + title(*owner->second) +
                                                    " both bind to slice " + std::to_string(slice) +
                                                    " of " + title(index));
    }
    const TargetSpec& target = targets_[static_cast<std::size_t>(index)];
    const std::int64_t out = target.slices[slice].out;
    // An embedding of fewer words: those of this shard that the file has.
    const std::int64_t columns = std::min(target.in, module.in - target.in_begin);
    if (columns <= 0) return {};
    AdapterBinding& binding = bound_.bindings.emplace_back();
    binding.target = index;
    binding.slice = slice;
    binding.rank = static_cast<std::int32_t>(module.rank);
    binding.scaling = module.scaling * target.delta_scale;
    binding.a = window(*module.a, 0, module.rank, target.in_begin, columns);
    binding.b = window(*module.b, row, out, 0, module.rank);
    if (module.bias != nullptr && target.bias_owner == BiasOwner::here) {
      binding.bias = vector_window(*module.bias, row, out);
    }
    return {};
  }

  Status compare_copy(const LoraModule& module, Place place, std::string& detail) {
    if (module.base_copy == nullptr) return {};
    const SafetensorsEntry& copy = *module.base_copy;
    if (copy.has_dtype == 0 || (!is_activation(copy.dtype) && copy.dtype != DType::f64)) {
      detail = std::string("not compared: dtype ") + copy.dtype_name;
      return {};
    }
    const TargetSpec& target = targets_[static_cast<std::size_t>(place.target)];
    std::int64_t row = 0;
    int num_compared = 0;
    int num_slices = 0;
    for (std::int32_t s = 0; s < target.num_slices; ++s) {
      const SliceSpec& slice = target.slices[s];
      if (!place.fused && module.path != slice.module) continue;
      ++num_slices;
      if (slice.base_weight.data != nullptr) {
        if (!place.fused && copy.num_dims == 2 && copy.sizes[0] != slice.base_weight.sizes[0]) {
          return Status(StatusCode::invalid_argument, "tensor " + quote(copy.name) + " has shape " +
                                                          shape_text(copy) +
                                                          ", the base weight of the model has " +
                                                          shape_text(slice.base_weight.sizes, 2));
        }
        if (Status status = compare_base(copy, row, slice.base_weight); !status.ok()) return status;
        ++num_compared;
      }
      if (place.fused) row += full_out(slice);
    }
    detail = num_compared == 0 ? "not compared" : "equal to the base";
    if (num_compared != 0 && num_compared != num_slices) detail += " where the model gives it";
    return {};
  }

  Status check_unbound(std::size_t num_bound) const {
    const std::size_t num_modules = adapter_.modules.size();
    if (num_bound == num_modules) return {};
    std::size_t first = 0;
    while (outcomes_[first].target >= 0) ++first;
    std::string text = num_bound == 0 ? "none" : std::to_string(num_bound);
    text += " of the " + std::to_string(num_modules) + " modules of the file bound to a target; " +
            "no target has " + quote(adapter_.modules[first].path);
    if (!targets_.empty()) {
      text += " (a module of target " + quote(targets_[0].key) + " is " +
              quote(targets_[0].slices[0].module) + ")";
    }
    if (num_bound == 0 || adapter_.unbound == AdapterOptions::Unbound::refuse) {
      return Status(StatusCode::invalid_argument, text);
    }
    adapter_.findings.note(adapter_.modules[first].path, text);
    return {};
  }

  void sort_bindings() {
    std::sort(bound_.bindings.begin(), bound_.bindings.end(),
              [](const AdapterBinding& a, const AdapterBinding& b) {
                return std::tuple(a.target, a.slice, a.expert) <
                       std::tuple(b.target, b.slice, b.expert);
              });
  }

  void write_report() {
    const auto entries = adapter_.tensors.entries();
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const TensorClass& its = adapter_.classes[i];
      TensorBinding& line = bound_.report.emplace_back();
      line.tensor = entries[i].name;
      if (its.module < 0) {
        line.detail = bound_.strings.add(its.why);
        continue;
      }
      const Outcome& outcome = outcomes_[static_cast<std::size_t>(its.module)];
      if (outcome.target < 0) {
        line.detail = bound_.strings.add(outcome.detail);
        continue;
      }
      const TargetSpec& target = targets_[static_cast<std::size_t>(outcome.target)];
      const bool copy = its.role == TensorRole::base_copy;
      line.kind = copy ? TensorBinding::Kind::base_copy : TensorBinding::Kind::bound;
      line.target = bound_.strings.add(target.key);
      std::string detail = copy ? outcome.copy_detail : outcome.detail;
      if (its.role == TensorRole::lora_bias && target.bias_owner == BiasOwner::elsewhere) {
        detail += ", added by another shard";
      }
      line.detail = bound_.strings.add(detail);
      if (!copy) bound_.weight_bytes += static_cast<std::int64_t>(entries[i].bytes);
      if (copy && outcome.copy_detail != "equal to the base") {
        adapter_.findings.note(entries[i].name,
                               "base copy " + quote(entries[i].name) + ": " + outcome.copy_detail);
      }
    }
  }

  ParsedAdapter& adapter_;
  std::span<const TargetSpec> targets_;
  BoundAdapter& bound_;
  std::map<std::string_view, Place> places_;
  std::map<std::pair<std::int32_t, std::int32_t>, const LoraModule*> owners_;
  std::vector<Outcome> outcomes_;
};

}  // namespace

Status bind_modules(ParsedAdapter& adapter, std::span<const TargetSpec> targets,
                    BoundAdapter& bound) {
  return Binder(adapter, targets, bound).run();
}

}  // namespace detail
RANKFOLD_NAMESPACE_END
