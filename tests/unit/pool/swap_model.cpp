#include "swap_model.hpp"

#include <algorithm>
#include <cstring>

namespace rankfold::testing {

namespace {

// One projection; the bit of its index says whether an adapter has it.
struct Module {
  std::int32_t target;
  std::int32_t slice;
  const char* name;
  std::int64_t out;
};
constexpr Module kModules[] = {{0, 0, "q", 8},     {0, 1, "k", 4},  {0, 2, "v", 4},
                               {1, 0, "gate", 10}, {1, 1, "up", 6}, {2, 0, "down", 12}};
constexpr unsigned kAllModules = 63;
constexpr const char* kKeys[kSwapTargets] = {"qkv", "gate_up", "down"};
constexpr std::int64_t kIn[kSwapTargets] = {12, 12, 16};
constexpr std::int32_t kSlices[kSwapTargets] = {3, 2, 1};
constexpr int kFirstModule[kSwapTargets] = {0, 3, 5};
constexpr std::uint64_t kUnit = 16;  // every matrix is rounded up to it in the arena

std::uint32_t mix(std::uint32_t key) {
  key ^= key >> 16;
  key *= 0x7feb352du;
  key ^= key >> 15;
  key *= 0x846ca68bu;
  return key ^ (key >> 16);
}

// -3 to 3.
int small(std::uint32_t key) { return static_cast<int>(mix(key) % 7u) - 3; }

std::uint64_t rounded(std::uint64_t bytes) { return (bytes + kUnit - 1) / kUnit * kUnit; }

float x_at(std::int32_t target, std::size_t pattern, std::size_t k) {
  const auto value = small(static_cast<std::uint32_t>(
      (static_cast<std::size_t>(target) * kSwapPatterns + pattern) * 64 + k));
  return static_cast<float>(value == 0 ? 1 : value);
}

float start_at(std::size_t pattern, std::size_t column) {
  return static_cast<float>(100 * pattern + column);
}

}  // namespace

std::vector<TargetSpec> swap_targets() {
  static const std::vector<SliceSpec> kSpecs = [] {
    std::vector<SliceSpec> specs;
    for (const Module& module : kModules) {
      SliceSpec spec;
      spec.module = module.name;
      spec.out = module.out;
      specs.push_back(spec);
    }
    return specs;
  }();
  std::vector<TargetSpec> targets(kSwapTargets);
  for (std::int32_t t = 0; t < kSwapTargets; ++t) {
    TargetSpec& target = targets[static_cast<std::size_t>(t)];
    target.key = kKeys[t];
    target.num_slices = kSlices[t];
    target.slices = kSpecs.data() + kFirstModule[t];
    target.in = kIn[t];
  }
  return targets;
}

std::size_t swap_in(std::int32_t target) { return static_cast<std::size_t>(kIn[target]); }

std::size_t swap_out(std::int32_t target) {
  std::int64_t out = 0;
  for (const Module& module : kModules) out += module.target == target ? module.out : 0;
  return static_cast<std::size_t>(out);
}

std::vector<BFloat16> swap_x(std::int32_t target, std::size_t rows) {
  std::vector<BFloat16> x;
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t k = 0; k < swap_in(target); ++k) {
      x.push_back(to_bfloat16(x_at(target, row % kSwapPatterns, k)));
    }
  }
  return x;
}

std::vector<float> swap_start(std::int32_t target, std::size_t rows) {
  std::vector<float> y;
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t o = 0; o < swap_out(target); ++o) {
      y.push_back(start_at(row % kSwapPatterns, o));
    }
  }
  return y;
}

bool SwapVersion::matches(std::int32_t target, std::size_t row, const float* y) const {
  const std::size_t out = swap_out(target);
  const float* const want = rows[target].data() + row % kSwapPatterns * out;
  return std::memcmp(y, want, out * sizeof(float)) == 0;
}

// Sums of products of integers up to 3 by powers of two: exact in float32 in any order.
SwapAdapter::SwapAdapter(int id, std::int32_t rank) : version_(std::make_shared<SwapVersion>()) {
  version_->id = id;
  for (std::int32_t t = 0; t < kSwapTargets; ++t) version_->rows[t] = swap_start(t, kSwapPatterns);

  std::uint32_t draw = mix(static_cast<std::uint32_t>(id));
  const auto next = [&draw](std::uint32_t bound) { return (draw = mix(draw + 1)) % bound; };
  if (rank == 0) rank = static_cast<std::int32_t>(1 + next(kSwapMaxRank));
  // Half of them have every module.
  const unsigned modules = next(2) == 0 ? kAllModules : 1 + next(kAllModules);
  const float scaling = 0.25f * static_cast<float>(1u << next(4));
  const bool has_bias = next(2) == 0;

  std::size_t first_column = 0;
  for (std::size_t m = 0; m < std::size(kModules); ++m) {
    const Module& module = kModules[m];
    if (module.slice == 0) first_column = 0;
    const auto out = static_cast<std::size_t>(module.out);
    const std::size_t begin = first_column;
    first_column += out;
    if ((modules & (1u << m)) == 0) continue;

    const std::size_t in = swap_in(module.target);
    const auto r = static_cast<std::size_t>(rank);
    std::vector<int> a(r * in), b(out * r), bias(has_bias ? out : 0);
    for (auto* const matrix : {&a, &b, &bias}) {
      for (int& weight : *matrix) weight = static_cast<int>(next(7)) - 3;
    }
    for (std::size_t p = 0; p < kSwapPatterns; ++p) {
      float* const y = version_->rows[module.target].data() + p * swap_out(module.target) + begin;
      std::vector<int> h(r);
      for (std::size_t j = 0; j < r; ++j) {
        for (std::size_t k = 0; k < in; ++k) {
          h[j] += static_cast<int>(x_at(module.target, p, k)) * a[j * in + k];
        }
      }
      for (std::size_t o = 0; o < out; ++o) {
        int sum = has_bias ? bias[o] : 0;
        for (std::size_t j = 0; j < r; ++j) sum += h[j] * b[o * r + j];
        y[o] += scaling * static_cast<float>(sum);
      }
    }

    const auto narrow = [this](const std::vector<int>& from) {
      std::vector<BFloat16>& to = storage_.emplace_back();
      for (const int weight : from) to.push_back(to_bfloat16(static_cast<float>(weight)));
      version_->weight_bytes += to.size() * sizeof(BFloat16);
      version_->arena_bytes += rounded(to.size() * sizeof(BFloat16));
      return static_cast<const void*>(to.data());
    };
    AdapterBinding binding;
    binding.target = module.target;
    binding.slice = module.slice;
    binding.rank = rank;
    binding.scaling = scaling;
    binding.a = const_matrix(narrow(a), DType::bf16, rank, static_cast<std::int64_t>(in));
    binding.b = const_matrix(narrow(b), DType::bf16, module.out, rank);
    if (has_bias) {
      biases_.emplace_back(bias.begin(), bias.end());
      binding.bias = const_vector(biases_.back().data(), DType::f32, module.out);
      version_->weight_bytes += out * sizeof(float);
      version_->arena_bytes += rounded(out * sizeof(float));
    }
    bindings_.push_back(binding);
  }
}

void SwapAdapter::scramble() {
  for (auto& matrix : storage_) {
    std::fill(matrix.begin(), matrix.end(), to_bfloat16(1e30f));
  }
  for (auto& bias : biases_) std::fill(bias.begin(), bias.end(), 1e30f);
}

std::uint64_t largest_swap_adapter() {
  std::uint64_t bytes = 0;
  for (const Module& module : kModules) {
    const auto out = static_cast<std::uint64_t>(module.out);
    bytes += rounded(kSwapMaxRank * swap_in(module.target) * sizeof(BFloat16));
    bytes += rounded(kSwapMaxRank * out * sizeof(BFloat16)) + rounded(out * sizeof(float));
  }
  return bytes;
}

}  // namespace rankfold::testing
