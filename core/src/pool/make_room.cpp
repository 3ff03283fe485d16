// Publishing a deferred load: victims are evicted, and their memory is written after their steps.
#include <utility>

#include "guard.hpp"
#include "pool/state.hpp"
#include "pool/upload.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

Status PoolState::make_room(Load& load, std::span<const Stream> streams) {
  auto retirement = std::make_shared<Retirement>();
  retirement->joins.reserve(streams.size());
  std::vector<SlotWrite> writes;
  {
    Lock lock(mutex_);
    for (;;) {
      reap();
      writes.clear();
      Arena trial = arena_;
      bool placed = trial.place(load.plan.sizes, &load.placement);
      if (!placed && fits_with_retired(load)) {
        if (Status status = wait_for_oldest(lock); !status.ok()) return status;
        continue;
      }
      for (const std::int32_t victim : evictable()) {
        if (placed) break;
        trial.release(slot_at(victim).extents);
        writes.push_back({victim, nullptr});
        placed = trial.place(load.plan.sizes, &load.placement);
      }
      if (placed) {
        // What the victims leave over must not be given away before their steps have run.
        for (const SlotWrite& write : writes) {
          for (const Extent& extent : slot_at(write.slot).extents) {
            for (const Extent& rest : trial.free_within(extent)) {
              trial.take(rest);
              retirement->extents.push_back(rest);
            }
          }
        }
        arena_ = std::move(trial);
        break;
      }
      if (retirements_.empty()) return no_memory(load);
      if (Status status = wait_for_oldest(lock); !status.ok()) return status;
    }
    reserve_retirements();
    for (const SlotWrite& write : writes) {
      slot_at(write.slot).state = Slot::State::switching;
    }
    load.phase = Load::Phase::publishing;
  }
  if (writes.empty()) return upload_deferred(load);

  const SwitchResult result = switch_entries(streams, nullptr, writes, *retirement);
  if (result.settled && !result.waited) {
    // The upload overwrites what steps before the switch may still read.
    if (!backend_.wait(load.stream, retirement->done.get()).ok()) {
      static_cast<void>(backend_.synchronize(retirement->done.get()));
    }
  }
  const bool lost = !result.settled && result.num_written > 0;
  const bool partial = result.num_written < writes.size();
  {
    const std::lock_guard lock(mutex_);
    if (partial && !lost) {
      arena_.release(load.placement.extents);
      arena_.release(retirement->extents);
      load.placement = {};
      load.phase = Load::Phase::deferred;
    }
    for (std::size_t i = 0; i < writes.size(); ++i) {
      Slot& slot = slot_at(writes[i].slot);
      if (lost) {
        slot.state = Slot::State::lost;
      } else if (i < result.num_written) {
        slot.state = Slot::State::empty;
        slot.extents.clear();
        ++num_evictions_;
      } else {
        for (const Extent& extent : slot.extents) arena_.take(extent);
        slot.state = Slot::State::resident;
      }
    }
    if (lost) forget(load, Load::Phase::ended);
    if (lost || partial) return result.status;
    load.slot = writes.front().slot;
    slot_at(load.slot).state = Slot::State::switching;
    if (result.waited) {
      finish(*retirement);
    } else {
      retire(std::move(retirement));
    }
  }
  return upload_deferred(load);
}

Status PoolState::upload_deferred(Load& load) {
  Status status = guarded([&] { return send(load); });
  if (!status.ok()) {
    abandon(load);
    return status;
  }
  load.host_copy = {};
  const std::lock_guard lock(mutex_);
  load.phase = Load::Phase::ready;
  return {};
}

}  // namespace detail
RANKFOLD_NAMESPACE_END
