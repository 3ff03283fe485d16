#include "cold_layers.hpp"

#include <algorithm>
#include <set>

#include "must.hpp"

namespace rankfold::tools {
namespace {

constexpr std::int64_t kAlignment = 256;
constexpr std::int64_t kMostLayers = 4096;

bool is_training(const Workload& point) { return point.kind == Workload::Kind::train; }

std::int64_t h_columns(const Workload& point) {
  const TableShape shape = table_shape(point);
  return std::int64_t{shape.num_slices} * shape.max_rank;
}

}  // namespace

LayerLayout layout_of(const Workload& point) {
  LayerLayout layout;
  const auto place = [&](std::int64_t elements, DType dtype) {
    const std::int64_t at = layout.bytes;
    const std::int64_t bytes = elements * element_bytes(dtype);
    layout.bytes += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  };
  std::set<std::pair<std::int32_t, std::int32_t>> used;
  for (const BatchRow& row : batch_rows(point)) {
    if (row.slot >= 0) used.insert({row.slot, row.expert});
  }
  for (const auto& [slot, expert] : used) {
    const std::int32_t rank = point.rank_of(slot);
    for (std::size_t slice = 0; slice < point.out.size(); ++slice) {
      const std::int64_t a = place(rank * point.in, point.weight_dtype);
      const std::int64_t b = place(point.out[slice] * rank, point.weight_dtype);
      layout.weights.push_back({slot, expert, static_cast<std::int32_t>(slice), rank, a, b});
    }
  }
  layout.x = place(point.x_row_count() * point.in, point.x_dtype);
  layout.y = place(point.rows() * point.columns(), point.x_dtype);
  if (is_training(point)) layout.h = place(point.rows() * h_columns(point), DType::f32);
  if (point.backward) {
    layout.dx = place(point.rows() * point.in, point.x_dtype);
    layout.da = place(point.rank * point.in, DType::f32);
    layout.db = place(point.columns() * point.rank, DType::f32);
  }
  return layout;
}

ColdLayers::ColdLayers(LoraBackend& backend, Stream stream, Patterns& patterns,
                       const Workload& point, const Step& step, int num_layers)
    : backend_(backend),
      stream_(stream),
      patterns_(patterns),
      point_(point),
      step_(step),
      layout_(layout_of(point)) {
  const auto bytes = static_cast<std::size_t>(layout_.bytes);
  memory_ = must(Buffer::create(backend, bytes * static_cast<std::size_t>(num_layers)));
  if (point.backward) {
    std::vector<float*> pointers;
    for (int layer = 0; layer < num_layers; ++layer) {
      pointers.push_back(reinterpret_cast<float*>(data(layer) + layout_.da));
      pointers.push_back(reinterpret_cast<float*>(data(layer) + layout_.db));
    }
    const std::size_t size = pointers.size() * sizeof(float*);
    gradients_ = must(Buffer::create(backend, size));
    must(backend.copy(gradients_.data(), pointers.data(), size, CopyKind::host_to_device, stream));
    must(backend.synchronize(stream));
  }
  fill_first();
  for (int layer = 0; layer < num_layers; ++layer) {
    make_table(layer);
    if (layer == 0 && point.backward) compute_h();
    if (layer > 0) {
      must(backend.copy(data(layer), data(0), bytes, CopyKind::device_to_device, stream));
    }
  }
  must(backend.synchronize(stream));
}

void ColdLayers::fill_first() {
  const auto fill = [&](std::int64_t at, Fill kind, DType dtype, std::int64_t elements) {
    patterns_.fill(data(0) + at, kind, dtype, at, elements, stream_);
  };
  for (const LayerLayout::Weights& weights : layout_.weights) {
    const std::int64_t out = point_.out[static_cast<std::size_t>(weights.slice)];
    fill(weights.a, Fill::a, point_.weight_dtype, weights.rank * point_.in);
    fill(weights.b, Fill::b, point_.weight_dtype, out * weights.rank);
  }
  fill(layout_.x, Fill::x, point_.x_dtype, point_.x_row_count() * point_.in);
  fill(layout_.y, Fill::y, point_.x_dtype, point_.rows() * point_.columns());
  if (layout_.dx >= 0) fill(layout_.dx, Fill::dx, point_.x_dtype, point_.rows() * point_.in);
  // What a call must write holds NaN before.
  const auto poison = [&](std::int64_t at, std::int64_t elements) {
    must(backend_.fill(data(0) + at, 0xff, static_cast<std::size_t>(elements * 4), stream_));
  };
  if (layout_.h >= 0) poison(layout_.h, point_.rows() * h_columns(point_));
  if (layout_.da >= 0) poison(layout_.da, point_.rank * point_.in);
  if (layout_.db >= 0) poison(layout_.db, point_.columns() * point_.rank);
}

void ColdLayers::make_table(int layer) {
  AdapterTable table = must(AdapterTable::create(backend_, table_shape(point_)));
  for (const LayerLayout::Weights& weights : layout_.weights) {
    AdapterEntry entry;
    entry.a = data(layer) + weights.a;
    entry.b = data(layer) + weights.b;
    entry.rank = weights.rank;
    entry.scaling = point_.scale;
    must(table.set_entry(weights.slot, weights.expert, weights.slice, entry, stream_));
  }
  tables_.push_back(std::move(table));
}

void ColdLayers::compute_h() {
  ShrinkArgs args;
  args.x = x(0);
  args.table = tables_[0].view();
  args.addressing = step_.linear();
  args.h = h(0);
  const std::uint64_t bytes = must(workspace_bytes(backend_, make_problem(args)));
  const Buffer workspace = must(Buffer::create(backend_, bytes));
  must(shrink(backend_, args, workspace.workspace(), stream_));
  must(backend_.synchronize(stream_));
}

void ColdLayers::restore() {
  const bool backward = point_.backward;
  const std::int64_t at = backward ? layout_.dx : layout_.y;
  const std::int64_t elements = point_.rows() * (backward ? point_.in : point_.columns());
  patterns_.fill(data(0) + at, backward ? Fill::dx : Fill::y, point_.x_dtype, at, elements,
                 stream_);
  const auto bytes = static_cast<std::size_t>(elements * element_bytes(point_.x_dtype));
  for (int layer = 1; layer < size(); ++layer) {
    must(backend_.copy(data(layer) + at, data(0) + at, bytes, CopyKind::device_to_device, stream_));
  }
}

ConstTensorView ColdLayers::x(int layer) const {
  return const_matrix(data(layer) + layout_.x, point_.x_dtype, point_.x_row_count(), point_.in,
                      backend_.device());
}

TensorView ColdLayers::y(int layer) const {
  return matrix(data(layer) + layout_.y, point_.x_dtype, point_.rows(), point_.columns(),
                backend_.device());
}

TensorView ColdLayers::h(int layer) const {
  return matrix(data(layer) + layout_.h, DType::f32, point_.rows(), h_columns(point_),
                backend_.device());
}

Call ColdLayers::call(int layer) const {
  const AdapterTableView table = tables_[static_cast<std::size_t>(layer)].view();
  if (point_.kind == Workload::Kind::moe) {
    ApplyExpertsArgs args;
    args.x = x(layer);
    args.table = table;
    args.addressing = step_.experts();
    args.y = y(layer);
    return args;
  }
  if (point_.kind == Workload::Kind::serve) {
    ApplyLinearArgs args;
    args.x = x(layer);
    args.table = table;
    args.addressing = step_.linear();
    args.y = y(layer);
    return args;
  }
  if (!point_.backward) {
    ForwardArgs args;
    args.x = x(layer);
    args.table = table;
    args.addressing = step_.linear();
    args.y = y(layer);
    args.h = h(layer);
    return args;
  }
  BackwardArgs args;
  args.dy = y(layer);
  args.x = x(layer);
  args.h = h(layer);
  args.table = table;
  args.addressing = step_.linear();
  args.dx =
      matrix(data(layer) + layout_.dx, point_.x_dtype, point_.rows(), point_.in, backend_.device());
  args.grads.da = gradients_.as<float*>() + 2 * layer;
  args.grads.db = gradients_.as<float*>() + 2 * layer + 1;
  return args;
}

LayerRanges ColdLayers::ranges(int layer) const {
  LayerRanges layer_ranges;
  const auto add = [&](std::int64_t at, std::int64_t elements, DType dtype, bool written) {
    const auto bytes = static_cast<std::size_t>(elements * element_bytes(dtype));
    layer_ranges.ranges.push_back({data(layer) + at, bytes, written});
  };
  for (const LayerLayout::Weights& weights : layout_.weights) {
    const std::int64_t out = point_.out[static_cast<std::size_t>(weights.slice)];
    add(weights.a, weights.rank * point_.in, point_.weight_dtype, false);
    add(weights.b, out * weights.rank, point_.weight_dtype, false);
  }
  std::set<std::int64_t> x_rows;
  std::int64_t active = 0;
  for (const BatchRow& row : batch_rows(point_)) {
    if (row.slot < 0) continue;
    x_rows.insert(row.x_row);
    ++active;
  }
  const auto num_x = static_cast<std::int64_t>(x_rows.size());
  add(layout_.x, num_x * point_.in, point_.x_dtype, false);
  add(layout_.y, active * point_.columns(), point_.x_dtype, !point_.backward);
  if (point_.backward) add(layout_.dx, active * point_.in, point_.x_dtype, true);
  return layer_ranges;
}

int num_cold_layers(const Workload& point, const MachineLimits& limits) {
  // x and y of rows without adapter take room, too.
  const double rows = static_cast<double>(element_bytes(point.x_dtype)) *
                      static_cast<double>(point.rows()) *
                      static_cast<double>(point.in + point.columns());
  if (static_cast<double>(point.min_bytes) + rows > static_cast<double>(limits.memory_bytes)) {
    return 0;
  }
  const std::int64_t layer = layout_of(point).bytes;
  if (layer == 0 || point.min_bytes == 0) return 0;
  // Every layer has a table of its own, whatever its slots hold.
  const std::int64_t table = std::int64_t{point.adapters} * point.experts *
                             static_cast<std::int64_t>(point.out.size()) *
                             static_cast<std::int64_t>(sizeof(AdapterEntry));
  const std::int64_t room = limits.memory_bytes / (layer + table);
  if (room < 2) return 0;
  // By what a call touches, not by what lies there: rows without adapter stay untouched.
  const std::int64_t cold = (limits.cold_bytes + point.min_bytes - 1) / point.min_bytes;
  return static_cast<int>(std::min({std::max<std::int64_t>(cold, 2), room, kMostLayers}));
}

}  // namespace rankfold::tools
