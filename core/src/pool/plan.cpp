#include "pool/plan.hpp"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "pool/arena.hpp"
#include "rankfold/operations.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

namespace {

// Decode and prefill: strategies differ between few rows and many.
constexpr std::int64_t kAskedRows[] = {1, 4096};

class Planner {
 public:
  Planner(const LoraBackend& backend, const PoolLayout& layout, const PoolOptions& options)
      : backend_(backend), layout_(layout), options_(options) {}

  Status add(const AdapterBinding& binding) {
    binding_ = &binding;
    if (Status status = check_place(); !status.ok()) return status;
    if (Status status = check_numbers(); !status.ok()) return status;
    const TableShape& shape = target_->shape;
    PlannedEntry entry;
    entry.index = index_;
    entry.rank = binding.rank;
    entry.scaling = binding.scaling;
    const bool embedding = target_->kind == TargetKind::embedding;
    if (Status status = check_matrix(binding.a, "A", binding.rank, shape.in, embedding);
        !status.ok()) {
      return status;
    }
    if (Status status = check_matrix(binding.b, "B", shape.out[binding.slice], binding.rank, false);
        !status.ok()) {
      return status;
    }
    if (Status status = check_narrowing(binding.a.dtype, "A", shape.a_dtype); !status.ok()) {
      return status;
    }
    if (Status status = check_narrowing(binding.b.dtype, "B", shape.b_dtype); !status.ok()) {
      return status;
    }
    entry.in_limit = binding.a.sizes[1];
    entry.a = matrix_of(binding.a, shape.a_dtype, 'A');
    entry.b = matrix_of(binding.b, shape.b_dtype, 'B');
    if (binding.bias.data != nullptr || binding.bias.num_dims != 0) {
      if (Status status = check_bias(); !status.ok()) return status;
      entry.bias = matrix_of(binding.bias, DType::f32, 'b');
    }
    plan_.entries.push_back(entry);
    return {};
  }

  Result<Plan> finish() && { return std::move(plan_); }

 private:
  [[gnu::format(printf, 2, 3)]] Status wrong(const char* format, ...) const {
    char text[512];
    std::va_list args;
    va_start(args, format);
    std::vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return Status::format(StatusCode::invalid_argument,
                          "pool: target '%s', slice %d, expert %d: %s", target_->key.c_str(),
                          binding_->slice, binding_->expert, text);
  }

  Status check_place() {
    const auto num_targets = static_cast<std::int32_t>(layout_.targets.size());
    if (binding_->target < 0 || binding_->target >= num_targets) {
      return Status::format(StatusCode::invalid_argument,
                            "pool: target of a binding is %d; it should be 0 to %d",
                            binding_->target, num_targets - 1);
    }
    target_ = &layout_.targets[static_cast<std::size_t>(binding_->target)];
    const TableShape& shape = target_->shape;
    if (binding_->slice < 0 || binding_->slice >= shape.num_slices) {
      return wrong("the slice should be 0 to %d", shape.num_slices - 1);
    }
    if (binding_->expert < 0 || binding_->expert >= shape.num_experts) {
      return wrong("the expert should be 0 to %d", shape.num_experts - 1);
    }
    index_ =
        target_->first_entry + std::int64_t{binding_->expert} * shape.num_slices + binding_->slice;
    if (!taken_.insert(index_).second) {
      return wrong("two bindings name it; there should be one");
    }
    if (asked_.insert(binding_->target).second) return ask_backend();
    return {};
  }

  Status check_numbers() const {
    if (binding_->rank < 1) return wrong("rank is %d; it should be at least 1", binding_->rank);
    // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): check_place() has set it
    if (binding_->rank > target_->shape.max_rank) {
      return wrong("rank is %d; max_rank of the pool is %d", binding_->rank,
                   target_->shape.max_rank);
    }
    if (!std::isfinite(binding_->scaling)) {
      return wrong("scaling is %g; it should be finite", static_cast<double>(binding_->scaling));
    }
    return {};
  }

  Status check_host(const ConstTensorView& view, const char* name) const {
    if (view.data == nullptr) return wrong("%s is null; it should be host memory", name);
    if (!is_activation(view.dtype)) {
      return wrong("%s is %s; it should be f32, f16 or bf16", name, to_string(view.dtype));
    }
    if (view.device.type != DeviceType::cpu) return wrong("%s should be host memory", name);
    return {};
  }

  Status check_matrix(const ConstTensorView& view, const char* name, std::int64_t rows,
                      std::int64_t columns, bool fewer_columns) const {
    if (Status status = check_host(view, name); !status.ok()) return status;
    const bool fits = view.num_dims == 2 && view.sizes[0] == rows && view.sizes[1] >= 1 &&
                      (fewer_columns ? view.sizes[1] <= columns : view.sizes[1] == columns);
    if (fits && view.sizes[1] > std::numeric_limits<std::int64_t>::max() / 8 / rows) {
      return wrong("%s has more elements than a signed 64-bit size", name);
    }
    if (fits) return {};
    return wrong("%s has %d dimensions [%lld, %lld]; it should be [%lld, %lld%s]", name,
                 view.num_dims, static_cast<long long>(view.sizes[0]),
                 static_cast<long long>(view.sizes[1]), static_cast<long long>(rows),
                 static_cast<long long>(columns), fewer_columns ? " or fewer" : "");
  }

  Status check_narrowing(DType from, const char* name, DType to) const {
    if (converts_exactly(from, to) || options_.narrowing == Narrowing::allow) return {};
    return wrong(
        "%s is %s and the table is %s, which may lose bits; PoolOptions::narrowing should "
        "be allow, or PoolOptions::%c_dtype %s",
        name, to_string(from), to_string(to), name[0] == 'A' ? 'a' : 'b', to_string(from));
  }

  Status check_bias() const {
    if (target_->kind != TargetKind::linear) {
      return wrong("bias is given; embeddings and experts should have none");
    }
    if (Status status = check_host(binding_->bias, "bias"); !status.ok()) return status;
    const std::int64_t out = target_->shape.out[binding_->slice];
    if (binding_->bias.num_dims == 1 && binding_->bias.sizes[0] == out) return {};
    return wrong("bias has %d dimensions [%lld]; it should be [%lld]", binding_->bias.num_dims,
                 static_cast<long long>(binding_->bias.sizes[0]), static_cast<long long>(out));
  }

  Status ask_backend() const {
    Problem problem;
    problem.shape = target_->shape;
    problem.x_dtype = options_.x_dtype;
    problem.y_dtype = options_.y_dtype;
    switch (target_->kind) {
      case TargetKind::linear:
        problem.op = Op::apply_linear;
        break;
      case TargetKind::embedding:
        problem.op = Op::apply_embedding;
        problem.x_dtype = DType::i32;
        break;
      case TargetKind::experts:
        problem.op = Op::apply_experts;
        break;
    }
    for (const std::int64_t rows : kAskedRows) {
      problem.bounds = {rows, rows, std::min<std::int64_t>(rows, problem.shape.num_slots), rows};
      const auto strategy = supports(backend_, problem);
      if (strategy.ok()) continue;
      return Status::format(strategy.status().code(), "pool: target '%s': %s", target_->key.c_str(),
                            strategy.status().message());
    }
    return {};
  }

  std::size_t matrix_of(const ConstTensorView& view, DType dtype, char name) {
    const HostMatrix source = host_matrix(view);
    // The same view twice is one matrix: a pair trained on a fused module shares its A.
    const auto key = std::make_tuple(source.data, source.dtype, source.rows, source.columns,
                                     source.row_stride, source.column_stride, dtype);
    const auto [it, inserted] = known_.emplace(key, plan_.matrices.size());
    if (!inserted) return it->second;
    const std::uint64_t bytes = static_cast<std::uint64_t>(source.rows) *
                                static_cast<std::uint64_t>(source.columns) * size_of(dtype);
    plan_.matrices.push_back({source, dtype, bytes, binding_->target, name});
    plan_.sizes.push_back(round_to_unit(bytes));
    plan_.weight_bytes += bytes;
    plan_.rounded_bytes += round_to_unit(bytes);
    return it->second;
  }

  using Key =
      std::tuple<const void*, DType, std::int64_t, std::int64_t, std::int64_t, std::int64_t, DType>;
  const LoraBackend& backend_;
  const PoolLayout& layout_;
  const PoolOptions& options_;
  Plan plan_;
  std::map<Key, std::size_t> known_;
  std::set<std::int64_t> taken_;
  std::set<std::int32_t> asked_;
  const AdapterBinding* binding_ = nullptr;
  const PoolTarget* target_ = nullptr;
  std::int64_t index_ = 0;
};

}  // namespace

Result<Plan> make_plan(const LoraBackend& backend, const PoolLayout& layout,
                       const PoolOptions& options, std::span<const AdapterBinding> bindings) {
  if (bindings.empty()) {
    return Status(StatusCode::invalid_argument,
                  "pool: the adapter has no bindings; it should have at least one");
  }
  Planner planner(backend, layout, options);
  for (const AdapterBinding& binding : bindings) {
    if (Status status = planner.add(binding); !status.ok()) return status;
  }
  return std::move(planner).finish();
}

}  // namespace detail
RANKFOLD_NAMESPACE_END
