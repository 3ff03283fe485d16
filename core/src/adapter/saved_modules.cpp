#include "adapter/saved_modules.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

#include "adapter/parsed_adapter.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

namespace {

Status invalid(const std::string& text) { return Status(StatusCode::invalid_argument, text); }

bool given(const ConstTensorView& view) noexcept { return view.data != nullptr; }

// Where an element of a matrix goes in a dense tensor.
struct Place {
  std::int64_t first, row_stride, column_stride;
};

void copy_elements(const ConstTensorView& from, DenseTensor& to, const Place& place) {
  const auto size = static_cast<std::int64_t>(size_of(from.dtype));
  const std::int64_t columns = from.num_dims == 2 ? from.sizes[1] : 1;
  const std::int64_t column_stride = from.num_dims == 2 ? from.strides[1] : 1;
  const auto* source = static_cast<const std::byte*>(from.data);
  for (std::int64_t row = 0; row < from.sizes[0]; ++row) {
    const std::byte* read = source + row * from.strides[0] * size;
    std::byte* write = to.copied.data() + (place.first + row * place.row_stride) * size;
    if (column_stride == 1 && place.column_stride == 1) {
      std::memcpy(write, read, static_cast<std::size_t>(columns * size));
      continue;
    }
    for (std::int64_t column = 0; column < columns; ++column) {
      std::memcpy(write + column * place.column_stride * size, read + column * column_stride * size,
                  static_cast<std::size_t>(size));
    }
  }
}

DenseTensor make_dense(DType dtype, int num_dims, std::int64_t rows, std::int64_t columns) {
  DenseTensor tensor{dtype, num_dims, {rows, columns}, nullptr, {}};
  tensor.copied.resize(static_cast<std::size_t>(rows * columns) * size_of(dtype));
  return tensor;
}

// The whole tensor from one view: its own memory where that is dense.
DenseTensor whole(const ConstTensorView& view) {
  const std::int64_t columns = view.num_dims == 2 ? view.sizes[1] : 1;
  const bool dense = view.num_dims == 2 ? view.strides[1] == 1 && view.strides[0] == columns
                                        : view.strides[0] == 1;
  if (dense) return {view.dtype, view.num_dims, {view.sizes[0], columns}, view.data, {}};
  DenseTensor tensor = make_dense(view.dtype, view.num_dims, view.sizes[0], columns);
  copy_elements(view, tensor, {0, columns, 1});
  return tensor;
}

bool equal_elements(const ConstTensorView& left, const ConstTensorView& right) {
  if (left.dtype != right.dtype || left.sizes[0] != right.sizes[0] ||
      left.sizes[1] != right.sizes[1]) {
    return false;
  }
  const DenseTensor one = whole(left);
  const DenseTensor other = whole(right);
  return one.data() == other.data() ||
         std::memcmp(one.data(), other.data(),
                     static_cast<std::size_t>(one.sizes[0] * one.sizes[1]) * size_of(one.dtype)) ==
             0;
}

class Collection {
 public:
  Collection(std::span<const TargetSpec> targets, std::span<const AdapterWeights> weights)
      : targets_(targets), weights_(weights) {}

  Result<std::vector<SavedModule>> run() {
    if (Status status = check_targets(targets_); !status.ok()) return status;
    if (weights_.empty()) return invalid("weights is empty, an adapter has at least one");
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      if (Status status = place(weights_[i], "weights[" + std::to_string(i) + "]"); !status.ok()) {
        return status;
      }
    }
    for (std::size_t t = 0; t < targets_.size(); ++t) {
      for (std::int32_t s = 0; s < targets_[t].num_slices; ++s) {
        if (Status status = add(static_cast<std::int32_t>(t), s); !status.ok()) return status;
      }
    }
    if (Status status = name_pairs(); !status.ok()) return status;
    return std::move(modules_);
  }

 private:
  using Key = std::tuple<std::int32_t, std::int32_t, std::int32_t>;

  Status place(const AdapterWeights& weights, const std::string& name) {
    const auto in_range = [](std::int32_t index, std::size_t count) {
      return index >= 0 && static_cast<std::size_t>(index) < count;
    };
    const auto out_of_range = [&](const char* field, std::int32_t index, std::size_t count) {
      return invalid(name + "." + field + " is " + std::to_string(index) +
                     ", it must be from 0 to " + std::to_string(count) + " - 1");
    };
    if (!in_range(weights.target, targets_.size())) {
      return out_of_range("target", weights.target, targets_.size());
    }
    const TargetSpec& target = targets_[static_cast<std::size_t>(weights.target)];
    const auto num_slices = static_cast<std::size_t>(target.num_slices);
    if (!in_range(weights.slice, num_slices)) {
      return out_of_range("slice", weights.slice, num_slices);
    }
    const auto num_experts = static_cast<std::size_t>(target.num_experts);
    if (!in_range(weights.expert, num_experts)) {
      return out_of_range("expert", weights.expert, num_experts);
    }
    if (Status status = check_weights(target, weights, name); !status.ok()) return status;
    const Key key(weights.target, weights.slice, weights.expert);
    if (!by_place_.emplace(key, &weights).second) {
      return invalid(name + " is target " + quote(target.key) + ", slice " +
                     std::to_string(weights.slice) + ", expert " + std::to_string(weights.expert) +
                     " for the second time");
    }
    return {};
  }

  const AdapterWeights* find(std::int32_t target, std::int32_t slice, std::int32_t expert) const {
    const auto found = by_place_.find(Key(target, slice, expert));
    return found == by_place_.end() ? nullptr : found->second;
  }

  // The slices of a target that are windows of the module of slice `first`, by their rows.
  static std::vector<std::int32_t> windows_of(const TargetSpec& target, std::int32_t first) {
    std::vector<std::int32_t> slices;
    for (std::int32_t s = 0; s < target.num_slices; ++s) {
      if (std::string_view(target.slices[s].module) == target.slices[first].module) {
        slices.push_back(s);
      }
    }
    std::stable_sort(slices.begin(), slices.end(), [&](std::int32_t left, std::int32_t right) {
      return target.slices[left].out_begin < target.slices[right].out_begin;
    });
    return slices;
  }

  // The module of a slice, unless an earlier slice has brought it or it has no weights.
  Status add(std::int32_t index, std::int32_t first) {
    const TargetSpec& target = targets_[static_cast<std::size_t>(index)];
    const std::vector<std::int32_t> slices = windows_of(target, first);
    if (*std::min_element(slices.begin(), slices.end()) != first) return {};
    std::vector<const AdapterWeights*> parts;  // slice by slice, expert by expert
    std::size_t num_present = 0;
    for (const std::int32_t slice : slices) {
      for (std::int32_t expert = 0; expert < target.num_experts; ++expert) {
        parts.push_back(find(index, slice, expert));
        if (parts.back() != nullptr) ++num_present;
      }
    }
    if (num_present == 0) return {};
    const std::string name = "module " + quote(target.slices[first].module);
    if (num_present != parts.size()) {
      return invalid(name + " has weights of " + std::to_string(num_present) + " of " +
                     std::to_string(parts.size()) + " slices and experts, it must have all");
    }
    if (Status status = check_whole(target, slices, name); !status.ok()) return status;
    if (Status status = check_parts(target, parts, name); !status.ok()) return status;

    SavedModule module;
    module.kind = target.kind;
    module.path = target.slices[first].module;
    module.rank = parts[0]->a.sizes[0];
    module.alpha = parts[0]->alpha;
    if (target.kind == TargetKind::experts) {
      join_experts(target, slices, parts, module);
    } else {
      join_windows(target, slices, parts, module);
    }
    modules_.push_back(std::move(module));
    slices_.push_back(&target.slices[first]);
    return {};
  }

  // A shard has only a part of its module.
  static Status check_whole(const TargetSpec& target, const std::vector<std::int32_t>& slices,
                            const std::string& name) {
    const auto sharded = [&](const std::string& what) {
      return invalid(name + " of target " + quote(target.key) + ": " + what +
                     "; a module is saved whole");
    };
    if (full_in(target) != target.in) {
      return sharded("the target has " + std::to_string(target.in) + " of " +
                     std::to_string(full_in(target)) + " columns");
    }
    std::int64_t next = 0;
    for (const std::int32_t s : slices) {
      const SliceSpec& slice = target.slices[s];
      if (slice.out_begin != next) break;
      next += slice.out;
    }
    const std::int64_t rows = full_out(target.slices[slices[0]]);
    if (next != rows) {
      return sharded("the slices have rows [0, " + std::to_string(next) + ") of " +
                     std::to_string(rows) + " without a gap or an overlap");
    }
    return {};
  }

  // What one pair of a file can hold: one rank, one alpha, one dtype, and one A for all windows.
  static Status check_parts(const TargetSpec& target,
                            const std::vector<const AdapterWeights*>& parts,
                            const std::string& name) {
    if (target.kind == TargetKind::experts && target.orientation == ExpertOrientation::by_shape) {
      return invalid(name + ": target " + quote(target.key) +
                     " has orientation by_shape, to be saved it must be out_in or in_out");
    }
    const AdapterWeights& one = *parts[0];
    const auto num_experts = static_cast<std::size_t>(target.num_experts);
    for (std::size_t i = 1; i < parts.size(); ++i) {
      const AdapterWeights& part = *parts[i];
      const std::string which = ": slice " + std::to_string(part.slice) + ", expert " +
                                std::to_string(part.expert) + " has another ";
      if (part.a.sizes[0] != one.a.sizes[0]) return invalid(name + which + "rank than the first");
      if (part.alpha != one.alpha) return invalid(name + which + "alpha than the first");
      if (part.a.dtype != one.a.dtype || part.b.dtype != one.b.dtype) {
        return invalid(name + which + "dtype than the first");
      }
      if (given(part.bias) != given(one.bias) ||
          (given(one.bias) && part.bias.dtype != one.bias.dtype)) {
        return invalid(name + which + "dtype of bias than the first, or has one alone");
      }
      if (i >= num_experts && !equal_elements(part.a, parts[i % num_experts]->a)) {
        return invalid(name + which + "A than the first, all slices of one module must share it");
      }
    }
    return {};
  }

  static void join_windows(const TargetSpec& target, const std::vector<std::int32_t>& slices,
                           const std::vector<const AdapterWeights*>& parts, SavedModule& module) {
    const AdapterWeights& one = *parts[0];
    module.a = whole(one.a);
    if (parts.size() == 1) {
      module.b = whole(one.b);
      if (given(one.bias)) module.bias = whole(one.bias);
      return;
    }
    const std::int64_t rows = full_out(target.slices[slices[0]]);
    module.b = make_dense(one.b.dtype, 2, rows, module.rank);
    if (given(one.bias)) module.bias = make_dense(one.bias.dtype, 1, rows, 1);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const std::int64_t begin = target.slices[slices[i]].out_begin;
      copy_elements(parts[i]->b, module.b, {begin * module.rank, module.rank, 1});
      if (given(one.bias)) copy_elements(parts[i]->bias, module.bias, {begin, 1, 1});
    }
  }

  // The file's A is expert-major; in the rows of its B the expert index is fastest. in_out: the
  // file's A is B transposed, and the other way round.
  static void join_experts(const TargetSpec& target, const std::vector<std::int32_t>& slices,
                           const std::vector<const AdapterWeights*>& parts, SavedModule& module) {
    const std::int64_t num_experts = target.num_experts;
    const std::int64_t rank = module.rank;
    const std::int64_t width = rank * num_experts;
    const std::int64_t rows = full_out(target.slices[slices[0]]);
    const bool straight = target.orientation == ExpertOrientation::out_in;
    const DType in_dtype = parts[0]->a.dtype;
    const DType out_dtype = parts[0]->b.dtype;
    DenseTensor in = straight ? make_dense(in_dtype, 2, width, target.in)
                              : make_dense(in_dtype, 2, target.in, width);
    DenseTensor out =
        straight ? make_dense(out_dtype, 2, rows, width) : make_dense(out_dtype, 2, width, rows);
    for (const AdapterWeights* part : parts) {
      const std::int64_t expert = part->expert;
      const std::int64_t begin = target.slices[part->slice].out_begin;
      const std::int64_t first = expert * rank;
      if (straight) {
        copy_elements(part->a, in, {first * target.in, target.in, 1});
        copy_elements(part->b, out, {begin * width + expert, width, num_experts});
      } else {
        copy_elements(part->a, in, {expert, num_experts, width});
        copy_elements(part->b, out, {first * rows + begin, 1, rows});
      }
    }
    module.a = std::move(straight ? in : out);
    module.b = std::move(straight ? out : in);
  }

  // Pairs of one module with several parameters are nested, the first one innermost.
  Status name_pairs() {
    std::map<std::string, std::vector<std::size_t>> owners;
    for (std::size_t i = 0; i < modules_.size(); ++i) {
      modules_[i].pair_path = modules_[i].path;
      if (modules_[i].kind != TargetKind::experts) continue;
      const std::size_t dot = modules_[i].path.rfind('.');
      if (dot == std::string::npos || dot == 0) {
        return invalid("parameter " + quote(modules_[i].path) +
                       " has no module before a dot in its path");
      }
      owners[modules_[i].path.substr(0, dot)].push_back(i);
    }
    for (const auto& [owner, parameters] : owners) {
      std::string path = owner;
      for (auto next = parameters.rbegin(); next != parameters.rend(); ++next) {
        const char* stated = slices_[*next]->pair_path;
        const bool all = std::all_of(parameters.begin(), parameters.end(), [&](std::size_t i) {
          return (slices_[i]->pair_path != nullptr) == (stated != nullptr);
        });
        if (!all) {
          return invalid("some parameters of module " + quote(owner) +
                         " have a pair_path and some have none, all or none must");
        }
        modules_[*next].pair_path = stated != nullptr ? stated : path;
        path += ".base_layer";
      }
    }
    return {};
  }

  std::span<const TargetSpec> targets_;
  std::span<const AdapterWeights> weights_;
  std::map<Key, const AdapterWeights*> by_place_;
  std::vector<SavedModule> modules_;
  std::vector<const SliceSpec*> slices_;  // the first of each module
};

}  // namespace

Result<std::vector<SavedModule>> collect_modules(std::span<const TargetSpec> targets,
                                                 std::span<const AdapterWeights> weights) {
  return Collection(targets, weights).run();
}

}  // namespace detail
RANKFOLD_NAMESPACE_END
