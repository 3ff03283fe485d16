#include "off_grid.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>

namespace rankfold::tools {
namespace {

class Random {
 public:
  std::size_t below(std::size_t limit) {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<std::size_t>((state_ >> 33) % limit);
  }

 private:
  std::uint64_t state_ = 20261130;
};

// Draws every value once before any again, so that few points cover all values.
template <class T>
class Bag {
 public:
  Bag(Random& random, std::vector<T> values) : random_(random), values_(std::move(values)) {}
  T draw() {
    if (left_.empty()) left_ = values_;
    const std::size_t at = random_.below(left_.size());
    const T value = left_[at];
    left_.erase(left_.begin() + static_cast<std::ptrdiff_t>(at));
    return value;
  }

 private:
  Random& random_;
  std::vector<T> values_;
  std::vector<T> left_;
};

enum class Use { one, each, uneven, half, mixed };

const char* use_name(Use use) {
  constexpr const char* kNames[] = {"one", "each", "uneven", "half", "mixed"};
  return kNames[static_cast<int>(use)];
}

struct Types {
  DType x;
  DType weights;
  const char* name;
};

void set_slots(Random& random, Use use, Workload& point) {
  const auto tokens = static_cast<std::int32_t>(point.tokens);
  point.adapters = use == Use::one ? 1 : use == Use::each ? std::min(tokens, 32) : 8;
  for (std::int32_t token = 0; token < tokens; ++token) {
    std::int32_t slot = token % point.adapters;
    if (use == Use::uneven || use == Use::mixed) {
      // Slot 0 for half of the rows, slot 1 for a quarter, and so on.
      slot = 0;
      while (slot + 1 < point.adapters && random.below(2) == 0) ++slot;
    }
    if (use == Use::half && token % 2 == 1) slot = -1;
    point.token_slots.push_back(slot);
  }
  if (use != Use::mixed) return;
  constexpr std::int32_t kRanks[] = {4, 12, 24, 48, 128};
  const auto end = std::upper_bound(std::begin(kRanks), std::end(kRanks), point.rank);
  const auto count = static_cast<std::size_t>(end - std::begin(kRanks));
  for (std::int32_t slot = 0; slot < point.adapters; ++slot) {
    point.slot_ranks.push_back(kRanks[random.below(count)]);
  }
  point.slot_ranks[random.below(2)] = point.rank;
}

}  // namespace

std::vector<Workload> off_grid_points() {
  const std::vector<std::int64_t> widths = {1021, 1536, 2560, 3072, 3584, 5120, 7168, 18944};
  Random random;
  Bag<std::int64_t> ins(random, widths);
  Bag<std::int64_t> outs(random, widths);
  Bag<std::int32_t> ranks(random, {4, 12, 24, 48, 128});
  Bag<std::int64_t> tokens(random, {2, 7, 40, 100, 513, 3000});
  Bag<int> slices(random, {1, 1, 1, 2, 3});
  Bag<Use> uses(random, {Use::one, Use::each, Use::uneven, Use::half, Use::mixed});
  Bag<Types> types(random, {{DType::f16, DType::f16, "f16"},
                            {DType::bf16, DType::bf16, "bf16"},
                            {DType::bf16, DType::f32, "bf16-f32"}});
  std::vector<Workload> points;
  for (int i = 0; i < kNumOffGrid; ++i) {
    Workload point;
    point.group = "off-grid";
    point.scale = 0.5f;
    point.in = ins.draw();
    for (int slice = slices.draw(); slice > 0; --slice) point.out.push_back(outs.draw());
    point.rank = ranks.draw();
    point.tokens = tokens.draw();
    const Types type = types.draw();
    point.x_dtype = type.x;
    point.weight_dtype = type.weights;
    const Use use = uses.draw();
    set_slots(random, use, point);
    std::string out;
    for (const std::int64_t width : point.out)
      out += fmt::format("{}{}", out.empty() ? "" : "+", width);
    point.name = fmt::format("off-grid/{:02}/{}x{}/T{}/r{}/{}/{}", i, point.in, out, point.tokens,
                             point.rank, type.name, use_name(use));
    const Totals totals = totals_of(point);
    point.min_bytes = static_cast<std::int64_t>(totals.bytes);
    point.flops = static_cast<std::int64_t>(totals.flops);
    points.push_back(std::move(point));
  }
  return points;
}

}  // namespace rankfold::tools
