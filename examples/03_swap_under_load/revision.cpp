#include "revision.hpp"

namespace swap_under_load {
namespace {

struct Target {
  const char* key;
  std::int64_t in;
  std::vector<rankfold::SliceSpec> slices;
};

rankfold::SliceSpec slice(const char* module, std::int64_t out) {
  rankfold::SliceSpec spec;
  spec.module = module;
  spec.out = out;
  return spec;
}

const std::vector<Target>& model() {
  static const std::vector<Target> kModel = {
      {"qkv", 256, {slice("q_proj", 256), slice("k_proj", 64), slice("v_proj", 64)}},
      {"down", 512, {slice("down_proj", 256)}},
  };
  return kModel;
}

// A different, evenly spread number each time.
class Numbers {
 public:
  explicit Numbers(std::uint32_t key) : state_(key) {}
  std::uint32_t below(std::uint32_t bound) {
    state_ += 0x9e3779b9u;
    std::uint32_t value = state_;
    value = (value ^ (value >> 16)) * 0x21f0aaadu;
    value = (value ^ (value >> 15)) * 0x735a2d97u;
    return (value ^ (value >> 15)) % bound;
  }

 private:
  std::uint32_t state_;
};

std::vector<float> integers(Numbers& numbers, std::int64_t count, int largest) {
  std::vector<float> values(static_cast<std::size_t>(count));
  const auto span = static_cast<std::uint32_t>(2 * largest + 1);
  for (float& value : values)
    value = static_cast<float>(static_cast<int>(numbers.below(span)) - largest);
  return values;
}

// y[p, o] += scaling * sum over j of (sum over k of x[p, k] a[j, k]) b[o, j]
void add_delta(const std::vector<float>& x, const std::vector<float>& a,
               const std::vector<float>& b, std::int64_t rank, float scaling, float* y,
               std::int64_t y_stride) {
  const auto in = static_cast<std::int64_t>(a.size()) / rank;
  const auto out = static_cast<std::int64_t>(b.size()) / rank;
  for (std::int64_t p = 0; p < kNumPatterns; ++p) {
    std::vector<float> h(static_cast<std::size_t>(rank));
    for (std::int64_t j = 0; j < rank; ++j)
      for (std::int64_t k = 0; k < in; ++k) h[j] += x[p * in + k] * a[j * in + k];
    for (std::int64_t o = 0; o < out; ++o) {
      float sum = 0;
      for (std::int64_t j = 0; j < rank; ++j) sum += h[j] * b[o * rank + j];
      y[p * y_stride + o] += scaling * sum;
    }
  }
}

}  // namespace

std::span<const rankfold::TargetSpec> targets() {
  static const std::vector<rankfold::TargetSpec> kSpecs = [] {
    std::vector<rankfold::TargetSpec> specs;
    for (const Target& target : model()) {
      rankfold::TargetSpec spec;
      spec.key = target.key;
      spec.num_slices = static_cast<std::int32_t>(target.slices.size());
      spec.slices = target.slices.data();
      spec.in = target.in;
      specs.push_back(spec);
    }
    return specs;
  }();
  return kSpecs;
}

std::int64_t in_of(std::int32_t target) { return model().at(target).in; }

std::int64_t out_of(std::int32_t target) {
  std::int64_t out = 0;
  for (const rankfold::SliceSpec& slice : model().at(target).slices) out += slice.out;
  return out;
}

// -1 and 1.
std::vector<float> make_x(std::int32_t target, std::int64_t rows) {
  std::vector<float> x;
  for (std::int64_t row = 0; row < rows; ++row) {
    Numbers numbers(static_cast<std::uint32_t>(target * kNumPatterns + row % kNumPatterns));
    for (std::int64_t k = 0; k < in_of(target); ++k)
      x.push_back(numbers.below(2) == 0 ? -1.0f : 1.0f);
  }
  return x;
}

std::uint64_t largest_adapter() {
  std::int64_t weights = 0;
  for (const Target& target : model())
    for (const rankfold::SliceSpec& slice : target.slices)
      weights += kMaxRank * (target.in + slice.out);
  return static_cast<std::uint64_t>(weights) * sizeof(rankfold::BFloat16);
}

Revision::Revision(std::int32_t adapter, std::uint32_t key) : adapter_(adapter) {
  Numbers numbers(key * 2654435761u);
  const std::int32_t rank = 4 << numbers.below(4);
  const float scaling = 0.25f * static_cast<float>(1u << numbers.below(4));
  // One in four lacks one of the targets: there the row must keep its bits.
  const std::uint32_t lacks = numbers.below(4 * kNumTargets);
  for (std::int32_t t = 0; t < kNumTargets; ++t) {
    const std::int64_t in = in_of(t);
    deltas_[t].resize(static_cast<std::size_t>(kNumPatterns * out_of(t)));
    if (lacks == static_cast<std::uint32_t>(t)) continue;
    const std::vector<float> x = make_x(t, kNumPatterns);
    std::int64_t first_column = 0;
    for (std::int32_t s = 0; s < targets()[t].num_slices; ++s) {
      const std::int64_t out = targets()[t].slices[s].out;
      const std::vector<float> a = integers(numbers, rank * in, 1);
      const std::vector<float> b = integers(numbers, out * rank, 3);
      add_delta(x, a, b, rank, scaling, deltas_[t].data() + first_column, out_of(t));
      first_column += out;

      rankfold::AdapterBinding binding;
      binding.target = t;
      binding.slice = s;
      binding.rank = rank;
      binding.scaling = scaling;
      for (const std::vector<float>* matrix : {&a, &b}) {
        weights_.emplace_back();
        for (const float weight : *matrix) weights_.back().push_back(rankfold::to_bfloat16(weight));
      }
      const rankfold::DType bf16 = rankfold::DType::bf16;
      binding.a = rankfold::const_matrix(weights_.end()[-2].data(), bf16, rank, in);
      binding.b = rankfold::const_matrix(weights_.back().data(), bf16, out, rank);
      bindings_.push_back(binding);
    }
  }
}

void Revision::drop_weights() {
  bindings_.clear();
  weights_.clear();
}

const float* Revision::delta(std::int32_t target, std::int64_t row) const {
  return deltas_[target].data() + row % kNumPatterns * out_of(target);
}

}  // namespace swap_under_load
