// The pool on the GPU: adapters change in a captured graph, and while steps run. Its model's rows
// are known to the bit for every version (tests/unit/pool/swap_model.hpp).
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "device.hpp"
#include "graph.hpp"
#include "unit/pool/swap_scenario.hpp"

using namespace rankfold;
using namespace rankfold::cuda_test;
using namespace rankfold::testing;

namespace {

constexpr std::int64_t kRows = 24;
constexpr std::int32_t kSlots = 3;

AdapterPool make_pool() {
  PoolOptions options;
  options.num_slots = kSlots;
  options.max_rank = kSwapMaxRank;
  options.arena_bytes = (kSlots + 1) * largest_swap_adapter();
  options.x_dtype = DType::bf16;
  options.y_dtype = DType::f32;
  return AdapterPool::create(device(), swap_targets(), options).value();
}

/// A step over all targets of the pool: group_tokens, then apply_linear for each.
class Step {
 public:
  Step(const AdapterPool& pool, Stream stream) : stream_(stream) {
    slots_ = Buffer::create(device(), kRows * sizeof(std::int32_t)).value();
    grouping_ = Buffer::create(device(), grouping_bytes(kRows, kSlots)).value();
    std::uint64_t workspace = 0;
    for (std::int32_t t = 0; t < kSwapTargets; ++t) {
      tables_[t] = pool.table(t).value();
      x_[t] = upload(swap_x(t, kRows), stream);
      start_[t] = upload(swap_start(t, kRows), stream);
      y_[t] = Buffer::create(device(), start_[t].bytes()).value();
      Problem problem;
      problem.addressing = AddressingMode::grouped;
      problem.shape = tables_[t].shape;
      problem.x_dtype = DType::bf16;
      problem.bounds = {kRows, kRows, kSlots, kRows};
      workspace = std::max(workspace, workspace_bytes(device(), problem).value());
    }
    workspace_ = Buffer::create(device(), workspace).value();
  }

  void set_slots(const std::vector<std::int32_t>& slots) {
    throw_if_error(device().copy(slots_.data(), slots.data(), slots_.bytes(),
                                 CopyKind::host_to_device, stream_));
  }
  void enqueue() {
    const Device at = device().device();
    LoraAddressing addressing;
    const GroupTokensArgs group = {
        kRows, kSlots, slots_.as<std::int32_t>(), grouping_.data(), grouping_.bytes(), at};
    throw_if_error(group_tokens(device(), group, stream_, &addressing));
    for (std::int32_t t = 0; t < kSwapTargets; ++t) {
      throw_if_error(device().copy(y_[t].data(), start_[t].data(), y_[t].bytes(),
                                   CopyKind::device_to_device, stream_));
      ApplyLinearArgs args;
      args.x = const_matrix(x_[t].as<BFloat16>(), kRows, static_cast<std::int64_t>(swap_in(t)), at);
      args.table = tables_[t];
      args.addressing = addressing;
      args.y = matrix(y_[t].as<float>(), kRows, static_cast<std::int64_t>(swap_out(t)), at);
      throw_if_error(apply_linear(device(), args, workspace_.workspace(), stream_));
    }
  }
  /// Rows that are not those of the version in their slot; null: no adapter.
  int num_wrong(const std::vector<std::int32_t>& slots,
                const std::vector<SwapVersionPtr>& in_slot) {
    int wrong = 0;
    for (std::int32_t t = 0; t < kSwapTargets; ++t) {
      const auto y = download<float>(y_[t], stream_);
      const std::vector<float> bare = swap_start(t, kRows);
      for (std::size_t row = 0; row < kRows; ++row) {
        const std::int32_t slot = slots[row];
        const bool has =
            slot >= 0 && slot < kSlots && in_slot[static_cast<std::size_t>(slot)] != nullptr;
        const float* const got = y.data() + row * swap_out(t);
        const bool right =
            has ? in_slot[static_cast<std::size_t>(slot)]->matches(t, row, got)
                : std::equal(got, got + swap_out(t), bare.data() + row * swap_out(t));
        wrong += right ? 0 : 1;
      }
    }
    return wrong;
  }

 private:
  Stream stream_;
  Buffer slots_, grouping_, workspace_;
  AdapterTableView tables_[kSwapTargets];
  Buffer x_[kSwapTargets], start_[kSwapTargets], y_[kSwapTargets];
};

AdapterHandle load(AdapterPool& pool, const SwapAdapter& adapter, Stream upload_stream,
                   Stream step_stream) {
  return pool.load(adapter.view(), upload_stream, std::span<const Stream>(&step_stream, 1)).value();
}

// An adapter of the model that touches the target, or that does not.
int find_id(std::int32_t target, bool touches, int from) {
  for (int id = from;; ++id) {
    const SwapAdapter adapter(id);
    const bool bare = adapter.version()->rows[target] == swap_start(target, kSwapPatterns);
    if (bare != touches) return id;
  }
}

}  // namespace

TEST_CASE("D4: another adapter in a captured slot; D5: one with fewer modules") {
  const OwnedStream stream = make_stream(), uploads = make_stream();
  AdapterPool pool = make_pool();
  Step step(pool, stream);
  const std::vector<std::int32_t> slots(kRows, 0);
  std::vector<SwapVersionPtr> in_slot(kSlots);
  // Nothing is loaded when the graph is captured.
  step.set_slots(slots);
  throw_if_error(device().synchronize(stream));
  const Graph graph(stream, [&] { step.enqueue(); });
  graph.launch(stream);
  CHECK(step.num_wrong(slots, in_slot) == 0);

  const SwapAdapter whole(find_id(2, true, 1));
  AdapterHandle handle = load(pool, whole, uploads, stream);
  REQUIRE(handle.slot == 0);
  in_slot[0] = whole.version();
  graph.launch(stream);
  CHECK(step.num_wrong(slots, in_slot) == 0);

  const Stream steps[] = {stream};
  const SwapAdapter fewer(find_id(2, false, whole.version()->id + 1));
  REQUIRE(pool.unload(handle, steps).ok());
  handle = load(pool, fewer, uploads, stream);
  REQUIRE(handle.slot == 0);
  in_slot[0] = fewer.version();
  graph.launch(stream);
  CHECK(step.num_wrong(slots, in_slot) == 0);

  REQUIRE(pool.unload(handle, steps).ok());
  in_slot[0] = nullptr;
  graph.launch(stream);
  CHECK(step.num_wrong(slots, in_slot) == 0);
}

TEST_CASE(
    "D8: slots that alternate for 1000 replays of one graph, with loads and evictions between") {
  const OwnedStream stream = make_stream(), uploads = make_stream();
  AdapterPool pool = make_pool();
  Step step(pool, stream);
  std::vector<std::int32_t> slots(kRows, -1);
  step.set_slots(slots);
  throw_if_error(device().synchronize(stream));
  const Graph graph(stream, [&] { step.enqueue(); });
  std::vector<SwapVersionPtr> in_slot(kSlots);
  std::mt19937 random(1);
  int num_wrong = 0, num_loads = 0;
  for (int i = 0; i < 1000 && num_wrong == 0; ++i) {
    if (i % 3 == 0) {
      const SwapAdapter adapter(++num_loads);
      const AdapterHandle handle = load(pool, adapter, uploads, stream);
      in_slot[static_cast<std::size_t>(handle.slot)] = adapter.version();
    }
    for (std::size_t t = 0; t < slots.size(); ++t) {
      slots[t] = i % 2 == 0 ? static_cast<std::int32_t>((t + static_cast<std::size_t>(i)) % kSlots)
                            : static_cast<std::int32_t>(random() % (kSlots + 1)) - 1;
    }
    step.set_slots(slots);
    graph.launch(stream);
    num_wrong += step.num_wrong(slots, in_slot);
  }
  CHECK(num_wrong == 0);
  CHECK(pool.stats().num_evictions > 0);
}

TEST_CASE(
    "D8, D14: rows are those of the versions their handles name, while adapters come and go") {
  // The heap is not watched: the driver allocates as it likes.
  constexpr std::int64_t kNumPublishes = RANKFOLD_SWAP_PUBLISHES / 5;
  check_swap(run_swap(device(), kNumPublishes, 1, nullptr), kNumPublishes);
}
