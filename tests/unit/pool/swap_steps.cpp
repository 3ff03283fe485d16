#include "swap_steps.hpp"

#include <algorithm>
#include <cstring>

#include "rankfold/operations.hpp"

namespace rankfold::testing {

namespace {

constexpr std::size_t kBatches = 6;  // on their way at once
constexpr std::size_t kFewRows = 8;
constexpr std::size_t kManyRows = 64;
constexpr std::size_t kCandidates = 4;  // adapters of a step, at most

}  // namespace

struct SwapSteps::Batch {
  bool running = false;
  AddressingMode mode = AddressingMode::tokens;
  std::vector<std::int32_t> slots;
  std::vector<SwapVersionPtr> versions;  // of each row; null: none
  std::vector<SwapVersionPtr> pinned;
  // Slots, then y of each target: pinned, and on the device.
  Buffer image;
  Buffer memory;
  Buffer workspace, grouping;
  Event done;

  static std::size_t slots_bytes() { return kManyRows * sizeof(std::int32_t); }
  static std::size_t y_begin(std::int32_t target) {
    std::size_t begin = slots_bytes();
    for (std::int32_t t = 0; t < target; ++t) begin += kManyRows * swap_out(t) * sizeof(float);
    return begin;
  }
  static std::size_t bytes() { return y_begin(kSwapTargets); }
  float* y(const Buffer& where, std::int32_t target) const {
    return reinterpret_cast<float*>(where.as<std::byte>() + y_begin(target));
  }
};

SwapSteps::SwapSteps(LoraBackend& backend, AdapterPool& pool, std::span<const Stream> streams,
                     SwapBoard& board, SwapFailures& failures, unsigned seed)
    : backend_(backend),
      pool_(pool),
      streams_(streams),
      board_(board),
      failures_(failures),
      random_(seed) {
  std::uint64_t workspace = 0;
  for (std::int32_t t = 0; t < kSwapTargets; ++t) {
    tables_[t] = pool.table(t).value();
    const std::vector<BFloat16> x = swap_x(t, kManyRows);
    const std::size_t x_bytes = x.size() * sizeof(BFloat16);
    x_[t] = Buffer::create(backend, x_bytes).value();
    throw_if_error(
        backend.copy(x_[t].data(), x.data(), x_bytes, CopyKind::host_to_device, streams.front()));
    throw_if_error(backend.synchronize(streams.front()));
    start_[t] = swap_start(t, kManyRows);
    for (const auto mode : {AddressingMode::tokens, AddressingMode::grouped}) {
      Problem problem;
      problem.op = Op::apply_linear;
      problem.addressing = mode;
      problem.shape = tables_[t].shape;
      problem.x_dtype = DType::bf16;
      const auto rows = static_cast<std::int64_t>(kManyRows);
      problem.bounds = {.rows = rows, .tokens = rows, .segments = rows, .active_rows = rows};
      workspace = std::max(workspace, workspace_bytes(backend, problem).value());
    }
  }
  const std::size_t grouping = grouping_bytes(kManyRows, tables_[0].shape.num_slots);
  for (std::size_t i = 0; i < kBatches; ++i) {
    auto batch = std::make_unique<Batch>();
    batch->workspace = Buffer::create(backend, workspace).value();
    batch->grouping = Buffer::create(backend, grouping).value();
    batch->done = backend.create_event().value();
    batch->image = Buffer::create(backend, Batch::bytes(), MemoryKind::pinned).value();
    batch->memory = Buffer::create(backend, Batch::bytes()).value();
    for (std::int32_t t = 0; t < kSwapTargets; ++t) {
      std::copy(start_[t].begin(), start_[t].end(), batch->y(batch->image, t));
    }
    batches_.push_back(std::move(batch));
  }
}

SwapSteps::~SwapSteps() {
  for (const auto& batch : batches_) backend_.destroy_event(batch->done);
}

void SwapSteps::expect(const Status& status) {
  if (!status.ok()) failures_.add(std::string("a step: ") + status.message());
}

void SwapSteps::run() {
  for (std::size_t i = 0; !board_.stopped(); ++i) {
    if (board_.pausing()) {
      finish_all();
      board_.wait_for_resume();
      continue;
    }
    Batch& batch = *batches_[i % kBatches];
    finish(batch);
    fill(batch);
    const Stream stream = streams_[i % streams_.size()];
    const Status status = enqueue(batch, stream);
    expect(status);
    if (status.ok()) {
      expect(backend_.record(batch.done, stream));
      batch.running = true;
    }
    // The step is enqueued, but has not run: from here on its adapters may go.
    for (const auto& version : batch.pinned) expect(pool_.unpin(version->handle));
    batch.pinned.clear();
  }
  finish_all();
  while (const SwapVersionPtr version = board_.take()) expect(pool_.unpin(version->handle));
}

void SwapSteps::fill(Batch& batch) {
  if (SwapVersionPtr fresh = board_.take()) batch.pinned.push_back(std::move(fresh));
  for (std::size_t i = batch.pinned.size(); i < kCandidates; ++i) {
    SwapVersionPtr version = board_.pick(static_cast<unsigned>(random_()));
    if (version == nullptr) continue;
    if (pool_.pin(version->handle).ok()) {
      batch.pinned.push_back(std::move(version));
    } else {
      ++counts_.stale_handles;
    }
  }
  const std::size_t rows = random_() % 8 == 0 ? kManyRows : 1 + random_() % kFewRows;
  batch.slots.clear();
  batch.versions.clear();
  for (std::size_t row = 0; row < rows; ++row) {
    // Row 0 is that of the version handed over, so that each is seen.
    const std::size_t pick = row == 0 ? 0 : random_() % (kCandidates + 1);
    const bool has = pick < batch.pinned.size();
    batch.slots.push_back(has ? batch.pinned[pick]->handle.slot : -1);
    batch.versions.push_back(has ? batch.pinned[pick] : nullptr);
  }
  batch.mode = random_() % 2 == 0 ? AddressingMode::grouped : AddressingMode::tokens;
  std::copy(batch.slots.begin(), batch.slots.end(), batch.image.as<std::int32_t>());
  for (std::int32_t t = 0; t < kSwapTargets; ++t) {
    std::memcpy(batch.y(batch.image, t), start_[t].data(), rows * swap_out(t) * sizeof(float));
  }
}

Status SwapSteps::enqueue(Batch& batch, Stream stream) {
  const auto rows = static_cast<std::int64_t>(batch.slots.size());
  const Device device = backend_.device();
  const auto* const token_slots = batch.memory.as<std::int32_t>();
  if (Status status = backend_.copy(batch.memory.data(), batch.image.data(), Batch::bytes(),
                                    CopyKind::host_to_device, stream);
      !status.ok()) {
    return status;
  }
  LoraAddressing addressing;
  if (batch.mode == AddressingMode::grouped) {
    GroupTokensArgs args;
    args.num_tokens = rows;
    args.num_slots = tables_[0].shape.num_slots;
    args.token_slots = token_slots;
    args.memory = batch.grouping.data();
    args.memory_bytes = batch.grouping.bytes();
    args.device = device;
    if (Status status = group_tokens(backend_, args, stream, &addressing); !status.ok()) {
      return status;
    }
  } else {
    addressing.num_tokens = rows;
    addressing.token_slots = token_slots;
    addressing.device = device;
  }
  for (std::int32_t t = 0; t < kSwapTargets; ++t) {
    ApplyLinearArgs args;
    args.x =
        const_matrix(x_[t].as<BFloat16>(), rows, static_cast<std::int64_t>(swap_in(t)), device);
    args.table = tables_[t];
    args.addressing = addressing;
    args.y = matrix(batch.y(batch.memory, t), rows, static_cast<std::int64_t>(swap_out(t)), device);
    if (Status status = apply_linear(backend_, args, batch.workspace.workspace(), stream);
        !status.ok()) {
      return status;
    }
  }
  return backend_.copy(batch.image.data(), batch.memory.data(), Batch::bytes(),
                       CopyKind::device_to_host, stream);
}

void SwapSteps::finish(Batch& batch) {
  if (!batch.running) return;
  batch.running = false;
  expect(backend_.synchronize(batch.done));
  for (std::size_t row = 0; row < batch.slots.size(); ++row) check_row(batch, row);
  ++counts_.steps;
  if (batch.mode == AddressingMode::grouped) ++counts_.grouped_steps;
  batch.versions.clear();
}

void SwapSteps::check_row(const Batch& batch, std::size_t row) {
  const SwapVersionPtr& version = batch.versions[row];
  ++(version != nullptr ? counts_.rows : counts_.bare_rows);
  bool right = true;
  for (std::int32_t t = 0; t < kSwapTargets; ++t) {
    const float* const y = batch.y(batch.image, t) + row * swap_out(t);
    const float* const bare = start_[t].data() + row * swap_out(t);
    const bool is_bare = std::memcmp(y, bare, swap_out(t) * sizeof(float)) == 0;
    if (version != nullptr ? version->matches(t, row, y) : is_bare) continue;
    right = false;
    const SwapVersionPtr other = board_.who(t, row, y);
    const auto name = [](const SwapVersionPtr& which) {
      return which == nullptr ? std::string("none of the last")
                              : "version " + std::to_string(which->handle.version);
    };
    failures_.add("step " + std::to_string(counts_.steps) + " row " + std::to_string(row) +
                  " target " + std::to_string(t) + ": the handle names slot " +
                  std::to_string(batch.slots[row]) + " " +
                  (version == nullptr ? "without an adapter" : name(version)) +
                  ", the row is that of " + (is_bare ? "no adapter" : name(other)));
  }
  if (!right) {
    ++counts_.wrong_rows;
  } else if (version != nullptr && !version->seen.exchange(true)) {
    ++counts_.versions_seen;
  }
}

void SwapSteps::finish_all() {
  for (const auto& batch : batches_) finish(*batch);
}

}  // namespace rankfold::testing
