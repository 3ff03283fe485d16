#include "train/lora_pass.hpp"

#include <algorithm>
#include <stdexcept>

namespace train {

using llama::Matrix;
using rankfold::Buffer;
using rankfold::CopyKind;
using rankfold::throw_if_error;

LoraPass::LoraPass(const Adapter& adapter, std::int64_t max_rows)
    : backend_(&adapter.backend()),
      max_rows_(max_rows),
      on_host_(backend_->device().type == rankfold::DeviceType::cpu),
      targets_(adapter.num_targets()),
      stream_(rankfold::OwnedStream::create(*backend_).value()) {
  std::size_t num_parameters = 0;
  for (const Adapter::Pair& pair : adapter.pairs())
    num_parameters = std::max(num_parameters,
                              pair.b + static_cast<std::size_t>(pair.out * adapter.shape().rank));
  gradients_.resize(num_parameters);
  device_gradients_ = Buffer::create(*backend_, num_parameters * sizeof(float)).value();

  const auto rows = static_cast<std::size_t>(max_rows);
  std::uint64_t workspace = 0;
  std::int64_t in = 0;
  std::int64_t out = 0;
  for (std::size_t t = 0; t < targets_.size(); ++t) {
    const rankfold::AdapterTable* table = adapter.table(static_cast<int>(t));
    if (table == nullptr) continue;
    Target& target = targets_[t];
    target.table = table->view();
    const rankfold::TableShape& shape = target.table.shape;
    const auto num_slices = static_cast<std::size_t>(shape.num_slices);
    const auto width = num_slices * static_cast<std::size_t>(shape.max_rank);
    target.h = Buffer::create(*backend_, rows * width * sizeof(float)).value();

    // Where the operation is to write each gradient: there is one slot, so a pointer a slice.
    std::vector<float*> pointers(2 * num_slices);
    for (const Adapter::Pair& pair : adapter.pairs()) {
      if (pair.target != static_cast<std::int32_t>(t)) continue;
      const auto slice = static_cast<std::size_t>(pair.slice);
      pointers[slice] = device_gradients_.as<float>() + pair.a;
      pointers[num_slices + slice] = device_gradients_.as<float>() + pair.b;
    }
    const std::size_t bytes = pointers.size() * sizeof(float*);
    target.gradient_pointers = Buffer::create(*backend_, bytes).value();
    copy(target.gradient_pointers.data(), pointers.data(), bytes, CopyKind::host_to_device);
    throw_if_error(stream_.synchronize());

    // workspace_bytes() is monotone in the rows: what serves most of them serves all.
    for (const rankfold::Problem& problem : {make_problem(forward_args(target, max_rows)),
                                             make_problem(backward_args(target, max_rows))})
      workspace = std::max(workspace, rankfold::workspace_bytes(*backend_, problem).value());
    in = std::max(in, shape.in);
    out = std::max(out, rankfold::total_out(shape));
  }
  workspace_ = Buffer::create(*backend_, workspace).value();
  if (on_host_) return;
  device_x_ =
      Buffer::create(*backend_, rows * static_cast<std::size_t>(in) * sizeof(float)).value();
  device_y_ =
      Buffer::create(*backend_, rows * static_cast<std::size_t>(out) * sizeof(float)).value();
  device_d_x_ =
      Buffer::create(*backend_, rows * static_cast<std::size_t>(in) * sizeof(float)).value();
}

// All rows use slot 0. Training several adapters in one batch would take token_slots here.
rankfold::LoraAddressing LoraPass::addressing(std::int64_t num_rows) const {
  return {.mode = rankfold::AddressingMode::uniform,
          .uniform_slot = 0,
          .num_tokens = num_rows,
          .device = backend_->device()};
}

rankfold::ForwardArgs LoraPass::forward_args(const Target& target, std::int64_t num_rows) const {
  const rankfold::TableShape& shape = target.table.shape;
  return {
      .x = rankfold::const_matrix(device_x_.as<float>(), num_rows, shape.in, backend_->device()),
      .table = target.table,
      .addressing = addressing(num_rows),
      .y = rankfold::matrix(device_y_.as<float>(), num_rows, rankfold::total_out(shape),
                            backend_->device()),
      .h = rankfold::matrix(target.h.as<float>(), num_rows, shape.num_slices * shape.max_rank,
                            backend_->device()),
      .dropout = {},
      .options = {}};
}

rankfold::BackwardArgs LoraPass::backward_args(const Target& target, std::int64_t num_rows) const {
  const rankfold::ForwardArgs forward = forward_args(target, num_rows);
  auto* const* pointers = target.gradient_pointers.as<float*>();
  return {.dy = forward.y,
          .x = forward.x,
          .h = forward.h,
          .table = forward.table,
          .addressing = forward.addressing,
          .dx = rankfold::matrix(device_d_x_.as<float>(), num_rows, target.table.shape.in,
                                 backend_->device()),
          .grads = {.da = pointers, .db = pointers + target.table.shape.num_slices},
          .ds = {},
          .dropout = {},
          .options = {}};
}

void LoraPass::forward(int index, const Matrix& x, Matrix& y) {
  Target& target = targets_.at(static_cast<std::size_t>(index));
  if (target.table.entries == nullptr || x.rows() == 0) return;
  if (x.rows() > max_rows_) throw std::length_error("a pass has more rows than it was made for");
  rankfold::ForwardArgs args = forward_args(target, x.rows());
  args.x.data = to_device(x, device_x_);
  args.y.data = const_cast<void*>(to_device(y, device_y_));
  throw_if_error(rankfold::forward(*backend_, args, workspace_.workspace(), stream_));
  finish(y, device_y_);
}

void LoraPass::backward(int index, const Matrix& d_y, const Matrix& x, Matrix* d_x) {
  Target& target = targets_.at(static_cast<std::size_t>(index));
  if (target.table.entries == nullptr || x.rows() == 0) return;
  rankfold::BackwardArgs args = backward_args(target, x.rows());
  args.x.data = to_device(x, device_x_);
  args.dy.data = to_device(d_y, device_y_);
  if (d_x == nullptr)
    args.dx = {};
  else
    args.dx.data = const_cast<void*>(to_device(*d_x, device_d_x_));
  throw_if_error(rankfold::backward(*backend_, args, workspace_.workspace(), stream_));
  if (d_x != nullptr)
    finish(*d_x, device_d_x_);
  else
    throw_if_error(stream_.synchronize());
}

std::span<const float> LoraPass::gradients() {
  copy(gradients_.data(), device_gradients_.data(), gradients_.size() * sizeof(float),
       CopyKind::device_to_host);
  throw_if_error(stream_.synchronize());
  return gradients_;
}

// The matrix where the backend sees it: its own memory on a CPU.
const void* LoraPass::to_device(const Matrix& from, const Buffer& to) {
  if (on_host_) return from.data();
  copy(to.data(), from.data(), static_cast<std::size_t>(from.size()) * sizeof(float),
       CopyKind::host_to_device);
  return to.data();
}

// The base runs on the host and reads the result next. A trainer whose base runs on the same stream
// does not wait.
void LoraPass::finish(Matrix& result, const Buffer& device) {
  if (!on_host_)
    copy(result.data(), device.data(), static_cast<std::size_t>(result.size()) * sizeof(float),
         CopyKind::device_to_host);
  throw_if_error(stream_.synchronize());
}

void LoraPass::copy(void* to, const void* from, std::size_t bytes, CopyKind kind) {
  throw_if_error(backend_->copy(to, from, bytes, kind, stream_));
}

}  // namespace train
