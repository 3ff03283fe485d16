// publish and unload: entries change between steps, memory goes back after them.
#include <algorithm>
#include <utility>

#include "pool/state.hpp"
#include "pool/upload.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

namespace {

Status check_streams(const char* function, std::span<const Stream> streams) {
  if (streams.empty()) {
    return Status::format(StatusCode::invalid_argument,
                          "%s: step_streams is empty; it should name every stream on which steps "
                          "run",
                          function);
  }
  for (std::size_t i = 0; i < streams.size(); ++i) {
    if (streams[i].handle != nullptr) continue;
    return Status::format(StatusCode::invalid_argument,
                          "%s: step_streams[%zu] is null; it should be a stream of the backend",
                          function, i);
  }
  return {};
}

}  // namespace

// All streams meet in the first one, which writes, and go on from there.
Status PoolState::enqueue_switch(std::span<const Stream> streams, const PooledEvent* upload,
                                 std::span<const SlotWrite> writes, Retirement& retirement,
                                 std::size_t& num_written) {
  const Stream first = streams.front();
  auto done = events_.acquire();
  if (!done.ok()) return done.status();
  retirement.done = std::move(*done);
  for (const Stream other : streams.subspan(1)) {
    auto join = events_.acquire();
    if (!join.ok()) return join.status();
    retirement.joins.push_back(std::move(*join));
    const Event event = retirement.joins.back().get();
    if (Status status = backend_.record(event, other); !status.ok()) return status;
    if (Status status = backend_.wait(first, event); !status.ok()) return status;
  }
  if (upload != nullptr) {
    if (Status status = backend_.wait(first, upload->get()); !status.ok()) return status;
  }
  for (const SlotWrite& write : writes) {
    AdapterEntry* const to = entries_.as<AdapterEntry>() + write.slot * layout_.slot_entries;
    Status status = write.image != nullptr ? backend_.copy(to, write.image, slot_bytes(),
                                                           CopyKind::host_to_device, first)
                                           : backend_.fill(to, 0, slot_bytes(), first);
    if (!status.ok()) return status;
    ++num_written;
  }
  if (Status status = backend_.record(retirement.done.get(), first); !status.ok()) return status;
  for (const Stream other : streams.subspan(1)) {
    if (Status status = backend_.wait(other, retirement.done.get()); !status.ok()) return status;
  }
  return {};
}

SwitchResult PoolState::switch_entries(std::span<const Stream> streams, const PooledEvent* upload,
                                       std::span<const SlotWrite> writes, Retirement& retirement) {
  SwitchResult result;
  result.status = enqueue_switch(streams, upload, writes, retirement, result.num_written);
  result.settled = result.status.ok();
  if (!result.status.ok() && result.num_written > 0) {
    // What was written cannot be taken back; once the host has seen it done, order is kept.
    result.waited = result.settled = backend_.synchronize(streams.front()).ok();
  }
  return result;
}

Result<AdapterHandle> PoolState::publish(Load& load, std::span<const Stream> streams,
                                         UploadWait wait) {
  if (Status status = check_streams("publish", streams); !status.ok()) return status;
  auto retirement = std::make_shared<Retirement>();
  retirement->joins.reserve(streams.size());
  bool deferred = false;
  {
    const std::lock_guard lock(mutex_);
    if (load.phase == Load::Phase::cancelled) {
      return Status(StatusCode::cancelled, "publish: the load was cancelled");
    }
    if (load.phase != Load::Phase::ready && load.phase != Load::Phase::deferred) {
      return Status(StatusCode::invalid_argument,
                    "publish: the load has ended; it should be one that waits to be published");
    }
    deferred = load.phase == Load::Phase::deferred;
  }
  if (deferred) {
    if (Status status = make_room(load, streams); !status.ok()) return status;
  }
  if (wait == UploadWait::on_host) {
    if (Status status = backend_.synchronize(load.uploaded.get()); !status.ok()) return status;
  }
  std::int32_t index = -1;
  Slot::State before = Slot::State::empty;
  {
    const std::lock_guard lock(mutex_);
    reserve_retirements();
    index = load.slot >= 0 ? load.slot : slot_to_use();
    if (index < 0) return no_slot();
    if (load.slot < 0) before = std::exchange(slot_at(index).state, Slot::State::switching);
    load.phase = Load::Phase::publishing;
  }
  const SlotWrite write{index, image_at(load.image)};
  const SwitchResult result = switch_entries(streams, &load.uploaded, {&write, 1}, *retirement);

  const std::lock_guard lock(mutex_);
  Slot& slot = slot_at(index);
  if (result.num_written == 0) {
    if (load.slot < 0) slot.state = before;
    load.phase = Load::Phase::ready;
    return result.status;
  }
  retirement->image = std::exchange(load.image, -1);
  load.slot = -1;
  forget(load, Load::Phase::ended);
  if (!result.settled) {  // the device is gone: neither memory is known to be free
    slot.state = Slot::State::lost;
    return result.status;
  }
  if (before == Slot::State::resident) ++num_evictions_;
  ++num_loads_;
  retirement->extents = std::exchange(slot.extents, std::move(load.placement.extents));
  slot.state = Slot::State::resident;
  slot.version = next_version_++;
  slot.last_use = ++clock_;
  slot.weight_bytes = load.plan.weight_bytes;
  slot.pins = 0;
  load.uploaded = {};
  if (result.waited) {
    finish(*retirement);
  } else {
    retire(std::move(retirement));
  }
  return AdapterHandle{index, 0, slot.version};
}

Status PoolState::unload(AdapterHandle handle, std::span<const Stream> streams) {
  if (Status status = check_streams("unload", streams); !status.ok()) return status;
  auto retirement = std::make_shared<Retirement>();
  retirement->joins.reserve(streams.size());
  {
    const std::lock_guard lock(mutex_);
    reap();
    reserve_retirements();
    Slot* const slot = find(handle);
    if (slot == nullptr) return not_resident("unload", handle);
    if (slot->pins > 0) {
      return Status::format(
          StatusCode::no_room, "unload: slot %d version %llu has %d pins; it should have none",
          handle.slot, static_cast<unsigned long long>(handle.version), slot->pins);
    }
    slot->state = Slot::State::switching;
  }
  const SlotWrite write{handle.slot, nullptr};
  const SwitchResult result = switch_entries(streams, nullptr, {&write, 1}, *retirement);
  const std::lock_guard lock(mutex_);
  Slot& slot = slot_at(handle.slot);
  if (result.num_written == 0) {
    slot.state = Slot::State::resident;
    return result.status;
  }
  if (!result.settled) {
    slot.state = Slot::State::lost;
    return result.status;
  }
  slot.state = Slot::State::empty;
  retirement->extents = std::move(slot.extents);
  slot.extents.clear();
  if (result.waited) {
    finish(*retirement);
  } else {
    retire(std::move(retirement));
  }
  return {};
}

}  // namespace detail
RANKFOLD_NAMESPACE_END
