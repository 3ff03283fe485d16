#include "cold_layers.hpp"

#include <algorithm>
#include <numeric>
#include <set>

#include "command.hpp"

namespace rankfold::tools {
namespace {

constexpr std::int64_t kElement = 2;  // bytes: f16 or bf16
constexpr std::int64_t kAlignment = 256;
constexpr std::int64_t kMostLayers = 4096;
// Far from the width of any row, so that rows differ.
constexpr std::size_t kPatternSize = 1'000'003;

void must(const Status& status) {
  if (!status.ok()) throw CommandError(kExitFailure, describe(status));
}

template <class T>
T must(Result<T> result) {
  must(result.status());
  return std::move(*result);
}

std::int64_t columns_of(const Workload& point) {
  return std::accumulate(point.out.begin(), point.out.end(), std::int64_t{0});
}

LayerLayout layout_of(const Workload& point) {
  LayerLayout layout;
  const auto place = [&](std::int64_t elements) {
    const std::int64_t at = layout.bytes;
    layout.bytes += (elements * kElement + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  };
  const std::set<std::int32_t> slots(point.token_slots.begin(), point.token_slots.end());
  for (const std::int32_t slot : slots) {
    if (slot < 0) continue;
    for (std::size_t slice = 0; slice < point.out.size(); ++slice) {
      const std::int64_t a = place(point.rank * point.in);
      const std::int64_t b = place(point.out[slice] * point.rank);
      layout.weights.push_back({slot, static_cast<std::int32_t>(slice), a, b});
    }
  }
  layout.x = place(point.tokens * point.in);
  layout.y = place(point.tokens * columns_of(point));
  return layout;
}

// Uniform in [-1, 1), the same in every run.
std::vector<float> make_pattern() {
  std::vector<float> pattern(kPatternSize);
  std::uint64_t state = 0x2545f4914f6cdd1dULL;
  for (float& value : pattern) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    value = static_cast<float>(static_cast<std::int32_t>(state >> 32)) * 0x1p-31f;
  }
  return pattern;
}

}  // namespace

ColdLayers::ColdLayers(LoraBackend& backend, Stream stream, const Workload& point, DType dtype,
                       float scale, int num_layers)
    : shape_(point),
      dtype_(dtype),
      device_(backend.device()),
      columns_(columns_of(point)),
      active_rows_(std::count_if(point.token_slots.begin(), point.token_slots.end(),
                                 [](std::int32_t slot) { return slot >= 0; })),
      layout_(layout_of(point)) {
  const auto bytes = static_cast<std::size_t>(layout_.bytes);
  initial_ = must(Buffer::create(backend, bytes, MemoryKind::pinned));
  memory_ = must(Buffer::create(backend, bytes * static_cast<std::size_t>(num_layers)));
  fill_initial(point);
  for (int layer = 0; layer < num_layers; ++layer) {
    must(backend.copy(data(layer), layer == 0 ? initial() : data(0), bytes,
                      layer == 0 ? CopyKind::host_to_device : CopyKind::device_to_device, stream));
    AdapterTable table = must(AdapterTable::create(backend, table_shape(point, dtype)));
    for (const LayerLayout::Weights& weights : layout_.weights) {
      AdapterEntry entry;
      entry.a = data(layer) + weights.a;
      entry.b = data(layer) + weights.b;
      entry.rank = point.rank;
      entry.scaling = scale;
      must(table.set_entry(weights.slot, 0, weights.slice, entry, stream));
    }
    layers_.push_back({std::move(table)});
  }
  must(backend.synchronize(stream));
}

void ColdLayers::fill_initial(const Workload& point) {
  const std::vector<float> pattern = make_pattern();
  std::size_t next = 0;
  const auto fill = [&](std::int64_t at, std::int64_t elements, float magnitude) {
    auto* const values = reinterpret_cast<std::uint16_t*>(initial_.as<std::byte>() + at);
    for (std::int64_t i = 0; i < elements; ++i) {
      const float value = pattern[next] * magnitude;
      values[i] = dtype_ == DType::f16 ? to_half(value).bits : to_bfloat16(value).bits;
      if (++next == kPatternSize) next = 0;
    }
  };
  std::fill_n(initial_.as<std::byte>(), layout_.bytes, std::byte{0});
  for (const LayerLayout::Weights& weights : layout_.weights) {
    const std::int64_t out = point.out[static_cast<std::size_t>(weights.slice)];
    fill(weights.a, point.rank * point.in, 0.05f);
    fill(weights.b, out * point.rank, 0.5f);
  }
  fill(layout_.x, point.tokens * point.in, 1.0f);
  fill(layout_.y, point.tokens * columns_, 1.0f);
}

ApplyLinearArgs ColdLayers::args(int layer, const LoraAddressing& addressing) const {
  ApplyLinearArgs args;
  args.x = const_matrix(data(layer) + layout_.x, dtype_, shape_.tokens, shape_.in, device_);
  args.table = layers_[static_cast<std::size_t>(layer)].table.view();
  args.addressing = addressing;
  args.y = matrix(data(layer) + layout_.y, dtype_, shape_.tokens, columns_, device_);
  return args;
}

LayerRanges ColdLayers::ranges(int layer) const {
  const auto bytes = [](std::int64_t elements) {
    return static_cast<std::size_t>(elements * kElement);
  };
  LayerRanges layer_ranges;
  for (const LayerLayout::Weights& weights : layout_.weights) {
    const std::int64_t out = shape_.out[static_cast<std::size_t>(weights.slice)];
    layer_ranges.ranges.push_back({data(layer) + weights.a, bytes(shape_.rank * shape_.in), false});
    layer_ranges.ranges.push_back({data(layer) + weights.b, bytes(out * shape_.rank), false});
  }
  layer_ranges.ranges.push_back({data(layer) + layout_.x, bytes(active_rows_ * shape_.in), false});
  layer_ranges.ranges.push_back({data(layer) + layout_.y, bytes(active_rows_ * columns_), true});
  return layer_ranges;
}

int num_cold_layers(const Workload& point, const MachineLimits& limits) {
  // Beside the layers there is their initial state; x and y of rows without adapter take room, too.
  const double rows =
      2.0 * static_cast<double>(point.tokens) * static_cast<double>(point.in + columns_of(point));
  if (static_cast<double>(point.min_bytes) + rows > static_cast<double>(limits.memory_bytes)) {
    return 0;
  }
  const std::int64_t layer = layout_of(point).bytes;
  if (layer == 0) return 0;
  // Every layer has a table of its own, whatever its slots hold.
  const std::int64_t table = std::int64_t{point.adapters} *
                             static_cast<std::int64_t>(point.out.size()) *
                             static_cast<std::int64_t>(sizeof(AdapterEntry));
  const std::int64_t room = (limits.memory_bytes - layer) / (layer + table);
  if (room < 2) return 0;
  const std::int64_t cold = (limits.cold_bytes + layer - 1) / layer;
  return static_cast<int>(std::min({std::max<std::int64_t>(cold, 2), room, kMostLayers}));
}

}  // namespace rankfold::tools
