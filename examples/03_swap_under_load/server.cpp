#include "server.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <utility>

#include "loader.hpp"

namespace swap_under_load {

using rankfold::CopyKind;
using rankfold::throw_if_error;

namespace {

constexpr std::int64_t kNumRows = 32;
// A request lasts this many steps, and holds its adapter for so long.
constexpr std::uint32_t kFewestSteps = 2;
constexpr std::uint32_t kMostSteps = 12;

using Clock = std::chrono::steady_clock;

}  // namespace

Server::Server(rankfold::LoraBackend& backend, rankfold::AdapterPool& pool, Directory& directory,
               std::int32_t num_slots, std::uint32_t seed)
    : backend_(backend),
      pool_(pool),
      directory_(directory),
      most_pinned_(static_cast<std::size_t>(std::max(1, num_slots - 2))),
      random_(seed),
      stream_(make_stream(backend)),
      requests_(kNumRows) {
  using rankfold::Buffer;
  using rankfold::MemoryKind;
  std::uint64_t workspace = 0;
  for (std::int32_t t = 0; t < kNumTargets; ++t) {
    make_target(t);
    rankfold::Problem problem;
    problem.op = rankfold::Op::apply_linear;
    problem.shape = targets_[t].table.shape;
    problem.bounds = {
        .rows = kNumRows, .tokens = kNumRows, .segments = kNumRows, .active_rows = kNumRows};
    for (const auto mode : {rankfold::AddressingMode::tokens, rankfold::AddressingMode::grouped}) {
      problem.addressing = mode;
      workspace = std::max(workspace, rankfold::workspace_bytes(backend, problem).value());
    }
  }
  workspace_ = Buffer::create(backend, workspace).value();
  slots_ = Buffer::create(backend, kNumRows * sizeof(std::int32_t)).value();
  host_slots_ =
      Buffer::create(backend, kNumRows * sizeof(std::int32_t), MemoryKind::pinned).value();
  grouping_ = Buffer::create(backend, rankfold::grouping_bytes(kNumRows, num_slots)).value();
  throw_if_error(stream_.synchronize());
}

// x and what the base model gives are the same in every step: only the deltas are of interest.
void Server::make_target(std::int32_t index) {
  using rankfold::Buffer;
  Target& target = targets_[index];
  target.table = pool_.table(index).value();
  const std::int64_t out = out_of(index);
  for (std::int64_t row = 0; row < kNumRows; ++row)
    for (std::int64_t o = 0; o < out; ++o)
      target.host_base.push_back(static_cast<float>(row - o % 16));
  const std::size_t y_bytes = target.host_base.size() * sizeof(float);
  const std::vector<float> x = make_x(index, kNumRows);
  const std::size_t x_bytes = x.size() * sizeof(float);
  target.x = Buffer::create(backend_, x_bytes).value();
  target.y = Buffer::create(backend_, y_bytes).value();
  target.base = Buffer::create(backend_, y_bytes).value();
  target.host_y = Buffer::create(backend_, y_bytes, rankfold::MemoryKind::pinned).value();
  throw_if_error(
      backend_.copy(target.x.data(), x.data(), x_bytes, CopyKind::host_to_device, stream_));
  throw_if_error(backend_.copy(target.base.data(), target.host_base.data(), y_bytes,
                               CopyKind::host_to_device, stream_));
  throw_if_error(stream_.synchronize());
}

void Server::run(const std::atomic<bool>& stop) {
  while (!stop) {
    for (Request& request : requests_)
      if (request.steps_left == 0) admit(request);
    step();
  }
  for (const Request& request : requests_)
    if (request.steps_left > 0 && request.who) throw_if_error(pool_.unpin(request.who->handle));
}

StepCounts Server::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(counts_, {});
}

void Server::admit(Request& request) {
  request = {
      .who = std::nullopt,
      .steps_left = static_cast<int>(kFewestSteps + random_() % (kMostSteps - kFewestSteps + 1))};
  // One row in eight is for the bare base; so is one whose adapters keep leaving.
  if (random_() % 8 == 0) return;
  for (int i = 0; i < 4; ++i)
    if (pin_any(request)) return;
}

bool Server::pin_any(Request& request) {
  // Some adapters must stay free to go, or the loader could do nothing.
  std::vector<const Resident*> used;
  for (const Request& other : requests_) {
    if (other.steps_left == 0 || !other.who) continue;
    const auto same = [&](const Resident* resident) {
      return resident->handle == other.who->handle;
    };
    if (std::none_of(used.begin(), used.end(), same)) used.push_back(&*other.who);
  }
  const auto random = static_cast<std::uint32_t>(random_());
  const std::optional<Resident> resident =
      used.size() < most_pinned_ ? directory_.pick(random) : *used[random % used.size()];
  if (!resident) return false;
  if (!pool_.pin(resident->handle).ok()) {  // evicted meanwhile
    directory_.remove(*resident);
    return false;
  }
  request.who = resident;
  return true;
}

void Server::step() {
  const auto begin = Clock::now();
  auto* const slots = host_slots_.as<std::int32_t>();
  for (std::int64_t row = 0; row < kNumRows; ++row)
    slots[row] = requests_[row].who ? requests_[row].who->handle.slot : -1;
  throw_if_error(backend_.copy(slots_.data(), slots, kNumRows * sizeof(std::int32_t),
                               CopyKind::host_to_device, stream_));
  const rankfold::LoraAddressing addressing = address();
  const rankfold::Device device = backend_.device();
  for (std::int32_t t = 0; t < kNumTargets; ++t) {
    Target& target = targets_[t];
    const std::size_t bytes = target.y.bytes();
    throw_if_error(backend_.copy(target.y.data(), target.base.data(), bytes,
                                 CopyKind::device_to_device, stream_));
    const rankfold::ApplyLinearArgs args{
        .x = rankfold::const_matrix(target.x.as<float>(), kNumRows, in_of(t), device),
        .table = target.table,
        .addressing = addressing,
        .y = rankfold::matrix(target.y.as<float>(), kNumRows, out_of(t), device),
        .options = {},
    };
    throw_if_error(rankfold::apply_linear(backend_, args, workspace_.workspace(), stream_));
    throw_if_error(backend_.copy(target.host_y.data(), target.y.data(), bytes,
                                 CopyKind::device_to_host, stream_));
  }

  // Enqueued, not run: an adapter whose requests are over may be evicted from here on.
  const std::vector<Request> batch = requests_;
  for (Request& request : requests_) {
    if (--request.steps_left == 0 && request.who) throw_if_error(pool_.unpin(request.who->handle));
  }
  throw_if_error(stream_.synchronize());
  const std::chrono::duration<float, std::milli> duration = Clock::now() - begin;

  const std::int64_t num_wrong = check(batch);
  ++num_steps_;
  const std::lock_guard lock(mutex_);
  counts_.rows += kNumRows;
  counts_.wrong_rows += num_wrong;
  counts_.milliseconds.push_back(duration.count());
}

// Both ways in turn: one slot a row, and rows grouped by slot on the device.
rankfold::LoraAddressing Server::address() {
  rankfold::LoraAddressing addressing;
  if (num_steps_ % 2 == 0) {
    addressing.num_tokens = kNumRows;
    addressing.token_slots = slots_.as<std::int32_t>();
    addressing.device = backend_.device();
    return addressing;
  }
  const rankfold::GroupTokensArgs args{
      .num_tokens = kNumRows,
      .num_slots = targets_[0].table.shape.num_slots,
      .token_slots = slots_.as<std::int32_t>(),
      .memory = grouping_.data(),
      .memory_bytes = grouping_.bytes(),
      .device = backend_.device(),
  };
  throw_if_error(rankfold::group_tokens(backend_, args, stream_, &addressing));
  return addressing;
}

std::int64_t Server::check(const std::vector<Request>& requests) const {
  std::int64_t num_wrong = 0;
  std::vector<float> right;
  for (std::int64_t row = 0; row < kNumRows; ++row) {
    const Request& request = requests[row];
    bool is_right = true;
    for (std::int32_t t = 0; t < kNumTargets; ++t) {
      const std::int64_t out = out_of(t);
      right.assign(targets_[t].host_base.begin() + row * out,
                   targets_[t].host_base.begin() + (row + 1) * out);
      if (request.who)
        for (std::int64_t o = 0; o < out; ++o) right[o] += request.who->revision->delta(t, row)[o];
      const float* const y = targets_[t].host_y.as<float>() + row * out;
      is_right = is_right && std::memcmp(y, right.data(), right.size() * sizeof(float)) == 0;
    }
    if (is_right) continue;
    if (++num_wrong == 1)
      std::fprintf(stderr, "step %llu: row %lld (slot %d) is not that of adapter %d\n",
                   static_cast<unsigned long long>(num_steps_), static_cast<long long>(row),
                   request.who ? request.who->handle.slot : -1,
                   request.who ? request.who->revision->adapter() : -1);
  }
  return num_wrong;
}

}  // namespace swap_under_load
