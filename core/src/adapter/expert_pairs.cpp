#include "adapter/expert_pairs.hpp"

#include <set>

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

namespace {

std::string_view owner_of(std::string_view parameter) noexcept {
  const std::size_t dot = parameter.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : parameter.substr(0, dot);
}

std::string pair_text(const LoraModule& module) {
  return "module " + quote(module.path) + " with A " + shape_text(*module.a) + " and B " +
         shape_text(*module.b);
}

struct Candidates {
  std::vector<ExpertFit> fits;
  std::string wanted;  // shapes of the parameters that do not fit
};

// One way round or the other, as far as the shapes allow it.
Status consider(const LoraModule& module, const TargetSpec& target, std::int32_t index,
                const SliceSpec& slice, Candidates& candidates) {
  const std::int64_t in = full_in(target);
  const std::int64_t out = full_out(slice);
  const bool whole = module.rank % target.num_experts == 0;
  bool straight = whole && module.in == in && module.out == out;
  bool swapped = whole && module.in == out && module.out == in;
  if (target.orientation == ExpertOrientation::out_in) swapped = false;
  if (target.orientation == ExpertOrientation::in_out) straight = false;
  if (straight && swapped) {
    return Status(StatusCode::invalid_argument,
                  pair_text(module) + " fits parameter " + quote(slice.module) +
                      " both ways round: target " + quote(target.key) +
                      " must say which by its orientation");
  }
  if (straight || swapped) {
    candidates.fits.push_back({index, slice.module, swapped});
  } else {
    candidates.wanted += (candidates.wanted.empty() ? "" : ", ") + quote(slice.module) + " of " +
                         std::to_string(target.num_experts) + " experts of [" +
                         std::to_string(out) + ", " + std::to_string(in) + "]";
  }
  return {};
}

}  // namespace

Result<std::optional<ExpertFit>> find_expert_parameter(const LoraModule& module,
                                                       std::span<const TargetSpec> targets) {
  const std::string_view owner = without_base_layers(module.path);
  Candidates candidates;
  std::set<std::string_view> seen;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i].kind != TargetKind::experts) continue;
    for (std::int32_t s = 0; s < targets[i].num_slices; ++s) {
      const SliceSpec& slice = targets[i].slices[s];
      if (owner_of(slice.module) != owner || !seen.insert(slice.module).second) continue;
      if (slice.pair_path != nullptr && module.path != slice.pair_path) continue;
      const Status status =
          consider(module, targets[i], static_cast<std::int32_t>(i), slice, candidates);
      if (!status.ok()) return status;
    }
  }
  if (candidates.fits.size() == 1) return std::optional(candidates.fits[0]);
  if (candidates.fits.size() > 1) {
    return Status(StatusCode::invalid_argument,
                  pair_text(module) + " fits parameters " + quote(candidates.fits[0].parameter) +
                      " and " + quote(candidates.fits[1].parameter) +
                      " alike: their slices must say which by pair_path");
  }
  if (candidates.wanted.empty()) return std::optional<ExpertFit>();
  return Status(StatusCode::malformed_file,
                pair_text(module) + " does not fit " + candidates.wanted);
}

void set_expert_views(const LoraModule& module, const TargetSpec& target, const SliceSpec& slice,
                      std::int32_t expert, bool swapped, AdapterBinding& binding) {
  const std::int64_t num_experts = target.num_experts;
  const std::int64_t rank = module.rank / num_experts;
  const auto view = [](const SafetensorsEntry& entry, std::int64_t first, std::int64_t rows,
                       std::int64_t columns, std::int64_t row_stride, std::int64_t column_stride) {
    const std::int64_t offset = first * static_cast<std::int64_t>(size_of(entry.dtype));
    return ConstTensorView{static_cast<const std::byte*>(entry.data) + offset,
                           entry.dtype,
                           2,
                           {rows, columns},
                           {row_stride, column_stride},
                           {}};
  };
  // Rows of the file's A of this expert, and columns of the file's B.
  const std::int64_t a_width = module.in;
  const std::int64_t b_width = module.rank;
  const std::int64_t a_first = expert * rank * a_width;
  if (!swapped) {
    binding.a = view(*module.a, a_first + target.in_begin, rank, target.in, a_width, 1);
    binding.b =
        view(*module.b, slice.out_begin * b_width + expert, slice.out, rank, b_width, num_experts);
  } else {
    binding.a =
        view(*module.b, target.in_begin * b_width + expert, rank, target.in, num_experts, b_width);
    binding.b = view(*module.a, a_first + slice.out_begin, slice.out, rank, 1, a_width);
  }
}

}  // namespace detail
RANKFOLD_NAMESPACE_END
