#include "point.hpp"

#include <algorithm>
#include <cmath>

namespace rankfold::bench {

namespace {

constexpr float kScaling = 0.5f;

/// The step with the adapters from `first` on: a table of its own over the same pool.
class Step {
 public:
  Step(LoraBackend& backend, const PointSpec& spec, const WeightPool& pool)
      : backend_(backend), spec_(spec), stream_(OwnedStream::create(backend).value()) {
    const std::int64_t count = pool.num_adapters(spec.rank) / spec.adapters * spec.adapters;
    for (std::int64_t i = 0; i < count; ++i) {
      AdapterEntry entry;
      entry.a = pool.a(spec.rank, i);
      entry.b = pool.b(spec.rank, i);
      entry.rank = spec.rank;
      entry.scaling = kScaling;
      entry.a_row_stride = entry.in_limit = kHidden;
      entry.b_row_stride = spec.rank;
      entries_.push_back(entry);
    }
    const std::int64_t rows = spec.tokens / spec.adapters;
    for (std::int64_t t = 0; t < spec.tokens; ++t) {
      slots_.push_back(static_cast<std::int32_t>(t / rows));
    }
    args_.table.shape.num_slots = static_cast<std::int32_t>(spec.adapters);
    args_.table.shape.max_rank = spec.rank;
    args_.table.shape.in = args_.table.shape.out[0] = kHidden;
    args_.table.shape.a_dtype = args_.table.shape.b_dtype = DType::bf16;
    args_.table.slot_stride = 1;
    args_.addressing.num_tokens = spec.tokens;
    args_.addressing.token_slots = slots_.data();
    args_.table.entries = entries_.data();
  }

  void bind(const std::vector<BFloat16>& x, std::vector<BFloat16>& y) {
    args_.x = const_matrix(x.data(), spec_.tokens, kHidden);
    args_.y = matrix(y.data(), spec_.tokens, kHidden);
    memory_ =
        Buffer::create(backend_, workspace_bytes(backend_, make_problem(args_)).value()).value();
  }

  std::int64_t num_copies() const {
    return static_cast<std::int64_t>(entries_.size()) / spec_.adapters;
  }
  void run(std::int64_t copy) {
    args_.table.entries = entries_.data() + copy * spec_.adapters;
    throw_if_error(apply_linear(backend_, args_, memory_.workspace(), stream_));
  }

 private:
  LoraBackend& backend_;
  const PointSpec& spec_;
  OwnedStream stream_;
  std::vector<AdapterEntry> entries_;
  std::vector<std::int32_t> slots_;
  ApplyLinearArgs args_;
  Buffer memory_;
};

// Largest error of some rows in units of what one rounding of y may cost.
double error_of(const PointSpec& spec, const WeightPool& pool, const std::vector<BFloat16>& x,
                const std::vector<BFloat16>& before, const std::vector<BFloat16>& after) {
  double worst = 0;
  const std::int64_t rows = spec.tokens / spec.adapters;
  for (const std::int64_t t : {std::int64_t{0}, spec.tokens / 2, spec.tokens - 1}) {
    const BFloat16* const a = pool.a(spec.rank, t / rows);
    const BFloat16* const b = pool.b(spec.rank, t / rows);
    std::vector<double> h(static_cast<std::size_t>(spec.rank));
    for (std::int64_t j = 0; j < spec.rank; ++j) {
      for (std::int64_t k = 0; k < kHidden; ++k) {
        h[static_cast<std::size_t>(j)] +=
            static_cast<double>(to_float(x[static_cast<std::size_t>(t * kHidden + k)])) *
            static_cast<double>(to_float(a[j * kHidden + k]));
      }
    }
    for (std::int64_t c = 0; c < kHidden; ++c) {
      const auto at = static_cast<std::size_t>(t * kHidden + c);
      double exact = 0;
      for (std::int64_t j = 0; j < spec.rank; ++j) {
        exact +=
            h[static_cast<std::size_t>(j)] * static_cast<double>(to_float(b[c * spec.rank + j]));
      }
      exact = static_cast<double>(to_float(before[at])) + static_cast<double>(kScaling) * exact;
      const double ulp = std::ldexp(1.0, std::ilogb(std::max(std::abs(exact), 1e-30)) - 7);
      worst = std::max(worst, std::abs(static_cast<double>(to_float(after[at])) - exact) / ulp);
    }
  }
  return worst;
}

}  // namespace

PointTimes measure(LoraBackend& backend, const PointSpec& spec, const WeightPool& pool, int rounds,
                   double work, const std::function<double()>& yardstick) {
  const std::vector<BFloat16> x = numbers(spec.tokens * kHidden, 1);
  const std::vector<BFloat16> before = numbers(spec.tokens * kHidden, 2);
  std::vector<BFloat16> y = before;
  Step step(backend, spec, pool);
  step.bind(x, y);
  PointTimes times;
  step.run(0);
  times.error = error_of(spec, pool, x, before, y);
  times.correct = times.error <= 1.0;
  if (!times.correct) return times;

  // Weights are cold: every step takes the next copy, and all copies together pass every cache.
  times.step = time_in_turn(rounds, work, yardstick,
                            [&](std::int64_t i) { step.run(i % step.num_copies()); });
  times.eigen = time_alone(0.3, [&](std::int64_t i) {
    eigen_step(spec, pool, i % step.num_copies() * spec.adapters, x, kScaling, y);
  });
  return times;
}

}  // namespace rankfold::bench
