#include <algorithm>
#include <cmath>
#include <set>

#include "groups.hpp"

namespace rankfold::bench {

namespace {

// Qwen3-30B-A3B's layer, by its published config.
constexpr std::int64_t kModel = 2048;
constexpr std::int64_t kInner = 768;
constexpr std::int32_t kExperts = 128;
constexpr std::int32_t kTopK = 8;
constexpr std::int32_t kRank = 16;
constexpr std::int32_t kAdapters = 4;
constexpr float kScaling = 0.5f;

// Tokens, their slots and their experts: uniform routing, each token's experts distinct.
struct Routing {
  std::vector<std::int32_t> slots, ids, order, tokens;
  std::vector<std::int32_t> offsets = std::vector<std::int32_t>(kExperts + 1, 0);
  std::int64_t pairs = 0;  ///< distinct (slot, expert)

  explicit Routing(std::int64_t num_tokens) {
    std::uint32_t state = 7;
    std::set<std::pair<std::int32_t, std::int32_t>> distinct;
    for (std::int32_t t = 0; t < num_tokens; ++t) {
      slots.push_back(t % kAdapters);
      std::set<std::int32_t> chosen;
      while (chosen.size() < kTopK) {
        state = state * 1664525u + 1013904223u;
        chosen.insert(static_cast<std::int32_t>(state >> 8) % kExperts);
      }
      for (const std::int32_t expert : chosen) {
        ids.push_back(expert);
        ++offsets[static_cast<std::size_t>(expert) + 1];
        distinct.insert({slots.back(), expert});
      }
    }
    pairs = static_cast<std::int64_t>(distinct.size());
    for (std::size_t e = 0; e < kExperts; ++e) offsets[e + 1] += offsets[e];
    for (std::int32_t row = 0; row < static_cast<std::int32_t>(ids.size()); ++row)
      order.push_back(row);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      return ids[static_cast<std::size_t>(a)] < ids[static_cast<std::size_t>(b)];
    });
    for (const std::int32_t row : order) tokens.push_back(row / kTopK);
  }
};

// One projection of the layer: gate and up (two slices that share A) or down.
struct Projection {
  const char* name;
  std::int64_t in;
  std::int32_t slices;
  std::int64_t out;  ///< of a slice
  XRows x_rows;

  std::int64_t elements() const { return kRank * (in + slices * out); }  ///< of one expert
};

class Step {
 public:
  Step(const Machine& machine, const Projection& projection, const Routing& routing,
       ExpertMode mode, bool cold)
      : backend_(machine.backend), stream_(OwnedStream::create(machine.backend).value()) {
    const std::int64_t entries = std::int64_t{kAdapters} * kExperts;
    const std::int64_t layer_bytes = 2 * projection.elements() * entries;
    copies_ = cold ? static_cast<std::int64_t>(machine.weights.bytes) / layer_bytes : 1;
    const auto* const weights = reinterpret_cast<const BFloat16*>(machine.weights.memory);
    for (std::int64_t i = 0; i < copies_ * entries; ++i) {
      const BFloat16* const a = weights + i * projection.elements();
      for (std::int32_t s = 0; s < projection.slices; ++s) {
        AdapterEntry entry;
        entry.a = a;
        entry.b = a + kRank * (projection.in + s * projection.out);
        entry.rank = kRank;
        entry.scaling = kScaling;
        entry.a_row_stride = entry.in_limit = projection.in;
        entry.b_row_stride = kRank;
        entries_.push_back(entry);
      }
    }
    per_copy_ = entries * projection.slices;
    TableShape& shape = args.table.shape;
    shape.num_slots = kAdapters;
    shape.num_experts = kExperts;
    shape.num_slices = projection.slices;
    shape.max_rank = kRank;
    shape.in = projection.in;
    for (std::int32_t s = 0; s < projection.slices; ++s) shape.out[s] = projection.out;
    shape.a_dtype = shape.b_dtype = DType::bf16;
    args.table.slot_stride = kExperts * projection.slices;
    ExpertAddressing& addressing = args.addressing;
    addressing.mode = mode;
    addressing.x_rows = projection.x_rows;
    addressing.num_tokens = static_cast<std::int64_t>(routing.slots.size());
    addressing.num_rows = static_cast<std::int64_t>(routing.ids.size());
    addressing.token_slots = routing.slots.data();
    if (mode == ExpertMode::gather) {
      addressing.expert_ids = routing.ids.data();
      addressing.top_k = kTopK;
    } else {
      addressing.expert_offsets = routing.offsets.data();
      addressing.row_tokens = routing.tokens.data();
    }
    const std::int64_t x_rows =
        projection.x_rows == XRows::own ? addressing.num_rows : addressing.num_tokens;
    x = numbers(x_rows * projection.in, 1);
    y = numbers(addressing.num_rows * projection.slices * projection.out, 2);
    args.x = const_matrix(x.data(), x_rows, projection.in);
    args.y = matrix(y.data(), addressing.num_rows, projection.slices * projection.out);
    args.table.entries = entries_.data();
    memory_ =
        Buffer::create(backend_, workspace_bytes(backend_, make_problem(args)).value()).value();
  }

  void run(std::int64_t i) {
    args.table.entries = entries_.data() + i % copies_ * per_copy_;
    throw_if_error(apply_experts(backend_, args, memory_.workspace(), stream_));
  }

  ApplyExpertsArgs args;
  std::vector<BFloat16> x, y;

 private:
  LoraBackend& backend_;
  OwnedStream stream_;
  std::vector<AdapterEntry> entries_;
  std::int64_t copies_ = 1;
  std::int64_t per_copy_ = 0;
  Buffer memory_;
};

// Largest error of some rows in units in the last place of y.
double error_of(Step& step, const Projection& projection, const Routing& routing) {
  const std::vector<BFloat16> before = step.y;
  step.run(0);
  double worst = 0;
  const std::int64_t rows = step.args.addressing.num_rows;
  const bool gather = step.args.addressing.mode == ExpertMode::gather;
  const std::int64_t width = projection.slices * projection.out;
  for (std::int64_t row = 0; row < rows; row += std::max<std::int64_t>(rows / 7, 1)) {
    const std::int64_t routed = gather ? row : routing.order[static_cast<std::size_t>(row)];
    const std::int64_t token = routed / kTopK;
    const std::int64_t expert = routing.ids[static_cast<std::size_t>(routed)];
    const std::int64_t slot = routing.slots[static_cast<std::size_t>(token)];
    const BFloat16* const x =
        step.x.data() + (projection.x_rows == XRows::own ? row : token) * projection.in;
    for (std::int64_t c = 0; c < width; ++c) {
      const AdapterEntry& entry =
          step.args.table
              .entries[(slot * kExperts + expert) * projection.slices + c / projection.out];
      const auto* const a = static_cast<const BFloat16*>(entry.a);
      const auto* const b =
          static_cast<const BFloat16*>(entry.b) + c % projection.out * entry.b_row_stride;
      double delta = 0;
      for (std::int64_t j = 0; j < kRank; ++j) {
        double h = 0;
        for (std::int64_t k = 0; k < projection.in; ++k)
          h += static_cast<double>(to_float(x[k])) *
               static_cast<double>(to_float(a[j * projection.in + k]));
        delta += h * static_cast<double>(to_float(b[j]));
      }
      const auto at = static_cast<std::size_t>(row * width + c);
      const double exact = static_cast<double>(to_float(before[at])) + kScaling * delta;
      const double ulp = std::ldexp(1.0, std::ilogb(std::max(std::abs(exact), 1e-30)) - 7);
      worst = std::max(worst, std::abs(static_cast<double>(to_float(step.y[at])) - exact) / ulp);
    }
  }
  return worst;
}

}  // namespace

bool experts(const Machine& machine) {
  std::printf(
      "apply_experts, hidden %lld, inner %lld, %d experts, top %d, rank %d, %d adapters, bf16, "
      "weights\n"
      "rotated over %.1f GiB; bytes: A and B of every (adapter, expert) that has rows, x read, y "
      "read "
      "and written\n"
      "of: cold read loop, measured in turn with the point\n\n",
      static_cast<long long>(kModel), static_cast<long long>(kInner), kExperts, kTopK, kRank,
      kAdapters, static_cast<double>(machine.weights.bytes) * 0x1p-30);
  std::printf("%-40s %10s %10s %10s %12s %8s %6s %11s\n", "point", "MB", "median us", "best us",
              "rate", "of", "share", "p10 to p90");
  const Projection projections[] = {{"gate and up", kModel, 2, kInner, XRows::token},
                                    {"down", kInner, 1, kModel, XRows::own}};
  struct Load {
    std::int64_t tokens;
    ExpertMode mode;
  };
  bool correct = true;
  for (const Load load : {Load{16, ExpertMode::gather}, {256, ExpertMode::grouped}}) {
    const Routing routing(load.tokens);
    for (const Projection& projection : projections) {
      const std::string name = std::to_string(load.tokens) + " tokens, " + projection.name + ", " +
                               (load.mode == ExpertMode::gather ? "gather" : "grouped");
      // Weights of one layer, checked before anything is timed.
      Step once(machine, projection, routing, load.mode, false);
      const double error = error_of(once, projection, routing);
      if (error > 1.0) {
        std::printf("%-40s WRONG: %.2f units in the last place of y\n", name.c_str(), error);
        correct = false;
        continue;
      }
      Step step(machine, projection, routing, load.mode, true);
      const double bytes =
          2.0 * (static_cast<double>(routing.pairs * projection.elements()) +
                 static_cast<double>(step.x.size()) + 2.0 * static_cast<double>(step.y.size()));
      const InTurn times = time_in_turn(
          machine.rounds, bytes, [&] { return machine.read_bandwidth(); },
          [&](std::int64_t i) { step.run(i); });
      std::printf("%-40s %10.1f %10.1f %10.1f %7.1f GB/s %8.1f %5.0f%% %4.0f to %3.0f%%\n",
                  name.c_str(), bytes * 1e-6, times.median * 1e6, times.best * 1e6,
                  bytes / times.median * 1e-9, times.yardstick * 1e-9, 100 * times.share,
                  100 * times.share_p10, 100 * times.share_p90);
      std::fflush(stdout);
    }
  }
  return correct;
}

}  // namespace rankfold::bench
