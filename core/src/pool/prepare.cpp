// prepare: check, reserve, convert, enqueue the upload.
#include <algorithm>

#include "guard.hpp"
#include "pool/state.hpp"
#include "pool/upload.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

Status PoolState::prepare(std::span<const AdapterBinding> bindings, Stream stream, Load& load) {
  if (stream.handle == nullptr) {
    return Status(StatusCode::invalid_argument,
                  "prepare: upload_stream is null; it should be a stream of the pool's backend");
  }
  auto plan = make_plan(backend_, layout_, options_, bindings);
  if (!plan.ok()) return plan.status();
  load.plan = std::move(*plan);
  load.stream = stream;
  load.rest = std::make_shared<Retirement>();
  if (load.plan.rounded_bytes > arena_.bytes()) {
    return Status::format(StatusCode::no_room,
                          "pool: the adapter needs %llu bytes; the arena has %llu in all",
                          static_cast<unsigned long long>(load.plan.rounded_bytes),
                          static_cast<unsigned long long>(arena_.bytes()));
  }
  if (Status status = reserve(load); !status.ok()) return status;
  // Host memory may run out half-way: what is reserved returns all the same.
  Status status = guarded([&]() -> Status {
    if (load.phase == Load::Phase::deferred)
      return keep_on_host(load.plan, layout_, load.host_copy);
    return send(load);
  });
  if (!status.ok()) abandon(load);
  return status;
}

Status PoolState::reserve(Load& load) {
  Lock lock(mutex_);
  loads_.reserve(loads_.size() + 1);
  for (;;) {
    reap();
    if (!slot_available()) return no_slot();
    const auto idle = std::find(image_lent_.begin(), image_lent_.end(), false);
    if (idle == image_lent_.end() && retirements_.empty()) {
      return Status::format(StatusCode::no_room,
                            "pool: %zu loads are pending; a pool takes up to %zu at once",
                            loads_.size(), image_lent_.size());
    }
    if (idle != image_lent_.end()) {
      if (arena_.place(load.plan.sizes, &load.placement)) {
        load.phase = Load::Phase::ready;
      } else if (!fits_with_retired(load)) {
        Arena trial = arena_;
        for (const auto& retirement : retirements_) trial.release(retirement->extents);
        for (const std::int32_t slot : evictable()) {
          trial.release(slots_[static_cast<std::size_t>(slot)].extents);
        }
        Placement unused;
        if (!trial.place(load.plan.sizes, &unused)) return no_memory(load);
        load.phase = Load::Phase::deferred;
      }
      if (load.phase != Load::Phase::preparing) {
        *idle = true;
        load.image = static_cast<std::int32_t>(idle - image_lent_.begin());
        loads_.push_back(&load);
        reserve_retirements();
        return {};
      }
    }
    if (Status status = wait_for_oldest(lock); !status.ok()) return status;
  }
}

bool PoolState::fits_with_retired(const Load& load) const {
  if (retirements_.empty()) return false;
  Arena trial = arena_;
  for (const auto& retirement : retirements_) trial.release(retirement->extents);
  Placement unused;
  return trial.place(load.plan.sizes, &unused);
}

Status PoolState::send(Load& load) {
  const auto& offsets = load.placement.offsets;
  if (Status status = upload(load.plan, layout_, offsets, arena_base(), *ring_, load.stream);
      !status.ok()) {
    return status;
  }
  auto event = events_.acquire();
  if (!event.ok()) return event.status();
  if (Status status = backend_.record(event->get(), load.stream); !status.ok()) return status;
  write_image(load.plan, layout_, offsets, arena_base(), image_at(load.image));
  const std::lock_guard lock(mutex_);
  load.uploaded = std::move(*event);
  return {};
}

// After an error: copies into the load's memory may still be on their way.
void PoolState::abandon(Load& load) {
  const std::shared_ptr<Retirement> rest = std::move(load.rest);
  rest->extents = std::move(load.placement.extents);
  bool recorded = false;
  bool waited = rest->extents.empty();
  if (!waited) {
    auto event = events_.acquire();
    recorded = event.ok() && backend_.record(event->get(), load.stream).ok();
    if (recorded) {
      rest->done = std::move(*event);
    } else {
      waited = backend_.synchronize(load.stream).ok();
    }
  }
  const std::lock_guard lock(mutex_);
  if (waited) arena_.release(rest->extents);
  if (recorded) retire(rest);
  forget(load, Load::Phase::ended);
}

Result<bool> PoolState::poll(const Load& load) noexcept {
  const std::lock_guard lock(mutex_);
  switch (load.phase) {
    case Load::Phase::cancelled:
      return Status(StatusCode::cancelled, "poll: the load was cancelled");
    case Load::Phase::deferred:
      return true;
    case Load::Phase::ready:
      return backend_.query(load.uploaded.get());
    default:
      return Status(StatusCode::invalid_argument,
                    "poll: the load has ended; it should be one that waits to be published");
  }
}

void PoolState::cancel(Load& load) noexcept {
  const std::lock_guard lock(mutex_);
  if (load.phase != Load::Phase::ready && load.phase != Load::Phase::deferred) return;
  if (load.phase == Load::Phase::ready) {
    load.rest->done = std::move(load.uploaded);
    load.rest->extents = std::move(load.placement.extents);
    retire(std::move(load.rest));
  }
  load.host_copy = {};
  forget(load, Load::Phase::cancelled);
}

}  // namespace detail
RANKFOLD_NAMESPACE_END
