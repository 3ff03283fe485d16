#include "llama/deltas.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>

namespace llama {

using rankfold::throw_if_error;

namespace {

// Adds the time of a scope to a sum.
class Stopwatch {
 public:
  explicit Stopwatch(double& sum) : sum_(sum) {}
  ~Stopwatch() { sum_ += std::chrono::duration<double>(Clock::now() - begin_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double& sum_;
  Clock::time_point begin_ = Clock::now();
};

}  // namespace

Deltas::Deltas(rankfold::LoraBackend& backend, std::vector<rankfold::AdapterTableView> tables,
               std::int64_t max_rows, rankfold::StreamMode mode)
    : backend_(&backend),
      tables_(std::move(tables)),
      max_rows_(max_rows),
      on_host_(backend.device().type == rankfold::DeviceType::cpu),
      stream_(rankfold::OwnedStream::create(backend, mode).value()) {
  const std::int32_t num_slots = tables_.at(0).shape.num_slots;
  const auto rows = static_cast<std::size_t>(max_rows);
  for (StepRows& step : step_) {
    step.slots.reserve(rows);
    step.device_slots = rankfold::Buffer::create(backend, rows * sizeof(std::int32_t)).value();
    step.grouping =
        rankfold::Buffer::create(backend, rankfold::grouping_bytes(max_rows, num_slots)).value();
  }
  workspace_ = rankfold::Buffer::create(backend, largest_workspace()).value();
  if (on_host_) return;

  std::int64_t in = 0;
  std::int64_t out = 0;
  for (const rankfold::AdapterTableView& table : tables_) {
    in = std::max(in, table.shape.in);
    out = std::max(out, rankfold::total_out(table.shape));
  }
  device_x_ = rankfold::Buffer::create(backend, rows * in * sizeof(float)).value();
  device_y_ = rankfold::Buffer::create(backend, rows * out * sizeof(float)).value();
}

// workspace_bytes() is monotone in every bound, so what serves the largest step serves each.
std::uint64_t Deltas::largest_workspace() const {
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    rankfold::Problem problem;
    problem.op = i == 0 ? rankfold::Op::apply_embedding : rankfold::Op::apply_linear;
    problem.addressing = rankfold::AddressingMode::grouped;
    problem.shape = tables_[i].shape;
    problem.x_dtype = i == 0 ? rankfold::DType::i32 : rankfold::DType::f32;
    problem.bounds = {.rows = max_rows_,
                      .tokens = max_rows_,
                      .segments = std::min<std::int64_t>(max_rows_, problem.shape.num_slots),
                      .active_rows = max_rows_};
    bytes = std::max(bytes, rankfold::workspace_bytes(*backend_, problem).value());
  }
  return bytes;
}

void Deltas::begin_step(std::span<const std::int32_t> slots,
                        std::span<const std::int64_t> logit_rows) {
  if (backend_ == nullptr) return;
  const Stopwatch stopwatch(seconds_);
  if (static_cast<std::int64_t>(slots.size()) > max_rows_)
    throw std::length_error("a step has more rows than Deltas was made for");

  // The head runs on fewer rows than the layers: it needs an addressing of its own, because row t
  // of its x is not row t of the step.
  StepRows& all = rows(Rows::all);
  StepRows& head = rows(Rows::logits);
  all.slots.assign(slots.begin(), slots.end());
  head.slots.clear();
  for (const std::int64_t row : logit_rows) head.slots.push_back(slots[row]);
  group(all);
  group(head);
}

void Deltas::group(StepRows& rows) {
  const auto num_rows = static_cast<std::int64_t>(rows.slots.size());
  const auto num_active =
      std::count_if(rows.slots.begin(), rows.slots.end(), [](std::int32_t s) { return s >= 0; });
  rows.addressing = {};
  rows.addressing.active_rows_bound = num_active;
  if (num_active == 0) return;  // the bare base: nothing will be enqueued

  // The slots are copied while the host goes on; they stay as they are until the step's first
  // operation has been waited for.
  copy(rows.device_slots.data(), rows.slots.data(), num_rows * sizeof(std::int32_t),
       rankfold::CopyKind::host_to_device);
  const rankfold::GroupTokensArgs args{
      .num_tokens = num_rows,
      .num_slots = tables_[0].shape.num_slots,
      .token_slots = rows.device_slots.as<std::int32_t>(),
      .memory = rows.grouping.data(),
      .memory_bytes = rows.grouping.bytes(),
      .device = backend_->device(),
  };
  throw_if_error(rankfold::group_tokens(*backend_, args, stream_, &rows.addressing));
  rows.addressing.active_rows_bound = num_active;
}

void Deltas::apply_linear(int target, const Matrix& x, Matrix& y, Rows which) {
  if (backend_ == nullptr) return;
  const Stopwatch stopwatch(seconds_);
  const rankfold::LoraAddressing& addressing = rows(which).addressing;
  if (addressing.active_rows_bound == 0) return;  // spares the copies, too
  const rankfold::ApplyLinearArgs args{
      .x = to_device(x.data(), rankfold::DType::f32, x.rows(), x.cols()),
      .table = tables_[target],
      .addressing = addressing,
      .y = to_device(y),
      .options = {},
  };
  throw_if_error(rankfold::apply_linear(*backend_, args, workspace_.workspace(), stream_));
  finish(y);
}

void Deltas::apply_embedding(int target, std::span<const std::int32_t> ids, Matrix& y) {
  if (backend_ == nullptr) return;
  const Stopwatch stopwatch(seconds_);
  const rankfold::LoraAddressing& addressing = rows(Rows::all).addressing;
  if (addressing.active_rows_bound == 0) return;
  const auto num_rows = static_cast<std::int64_t>(ids.size());
  rankfold::ConstTensorView device_ids = to_device(ids.data(), rankfold::DType::i32, num_rows, 1);
  const rankfold::ApplyEmbeddingArgs args{
      .ids = rankfold::const_vector(device_ids.data, rankfold::DType::i32, num_rows,
                                    backend_->device()),
      .table = tables_[target],
      .addressing = addressing,
      .y = to_device(y),
      .options = {},
  };
  throw_if_error(rankfold::apply_embedding(*backend_, args, workspace_.workspace(), stream_));
  finish(y);
}

rankfold::ConstTensorView Deltas::to_device(const void* data, rankfold::DType dtype,
                                            std::int64_t num_rows, std::int64_t columns) {
  const void* device_data = data;
  if (!on_host_) {
    copy(device_x_.data(), data, num_rows * columns * rankfold::size_of(dtype),
         rankfold::CopyKind::host_to_device);
    device_data = device_x_.data();
  }
  return rankfold::const_matrix(device_data, dtype, num_rows, columns, backend_->device());
}

rankfold::TensorView Deltas::to_device(Matrix& y) {
  float* device_data = y.data();
  if (!on_host_) {
    device_data = device_y_.as<float>();
    copy(device_data, y.data(), y.size() * sizeof(float), rankfold::CopyKind::host_to_device);
  }
  return rankfold::matrix(device_data, y.rows(), y.cols(), backend_->device());
}

// The base reads y next, on the host. An engine whose base runs on the same stream does not wait.
void Deltas::finish(Matrix& y) {
  if (!on_host_)
    copy(y.data(), device_y_.data(), y.size() * sizeof(float), rankfold::CopyKind::device_to_host);
  throw_if_error(backend_->synchronize(stream_));
}

void Deltas::copy(void* to, const void* from, std::size_t bytes, rankfold::CopyKind kind) {
  throw_if_error(backend_->copy(to, from, bytes, kind, stream_));
}

}  // namespace llama
