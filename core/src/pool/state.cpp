#include "pool/state.hpp"

#include <algorithm>
#include <new>

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

namespace {

// Enough for a few switches at once without asking the device for more.
constexpr std::size_t kFirstEvents = 8;
constexpr std::uint64_t kDefaultStagingBytes = 4u << 20;

Status out_of_memory(const char* what, std::uint64_t bytes, const Status& status) {
  return Status::format(StatusCode::out_of_memory, "pool: %s of %llu bytes: %s", what,
                        static_cast<unsigned long long>(bytes), status.message());
}

unsigned long long print(std::uint64_t value) noexcept { return value; }

}  // namespace

PoolState::PoolState(LoraBackend& backend, PoolLayout layout, const PoolOptions& options)
    : backend_(backend),
      layout_(std::move(layout)),
      options_(options),
      events_(backend),
      arena_(options.arena_bytes),
      image_lent_(static_cast<std::size_t>(std::min(options.num_slots, kMaxImages - 1) + 1)) {}

Status PoolState::create() {
  const std::uint64_t staging =
      options_.staging_bytes == 0 ? kDefaultStagingBytes : options_.staging_bytes;
  if (staging < StagingRing::kMinBytes) {
    return Status::format(StatusCode::invalid_argument,
                          "pool: staging_bytes is %llu; it should be at least %zu", print(staging),
                          StagingRing::kMinBytes);
  }
  if (arena_.bytes() == 0) {
    return Status::format(StatusCode::invalid_argument,
                          "pool: arena_bytes is %llu; it should hold at least one matrix",
                          print(options_.arena_bytes));
  }
  const std::size_t table_bytes = static_cast<std::size_t>(options_.num_slots) * slot_bytes();
  const struct {
    Buffer& buffer;
    std::size_t bytes;
    MemoryKind kind;
    const char* what;
  } parts[] = {{arena_memory_, arena_.bytes(), MemoryKind::device, "the arena"},
               {entries_, table_bytes, MemoryKind::device, "the tables"},
               {images_, image_lent_.size() * slot_bytes(), MemoryKind::pinned, "table images"}};
  for (const auto& part : parts) {
    auto buffer = Buffer::create(backend_, part.bytes, part.kind);
    if (!buffer.ok()) return out_of_memory(part.what, part.bytes, buffer.status());
    part.buffer = std::move(*buffer);
  }
  // After the tables: what is too much for them is refused before the host takes memory for it.
  const auto num_slots = static_cast<std::size_t>(options_.num_slots);
  try {
    slots_.resize(num_slots);
  } catch (const std::bad_alloc&) {
    return out_of_memory("the host's list of slots", num_slots * sizeof(Slot),
                         Status(StatusCode::out_of_memory, "num_slots should be smaller"));
  }
  ring_.emplace(backend_);
  if (Status status = ring_->create(staging); !status.ok()) {
    return out_of_memory("the staging ring", staging, status);
  }
  if (Status status = events_.reserve(kFirstEvents); !status.ok()) return status;
  auto stream = OwnedStream::create(backend_);
  if (!stream.ok()) return stream.status();
  if (Status status = backend_.fill(entries_.data(), 0, table_bytes, *stream); !status.ok()) {
    return status;
  }
  return stream->synchronize();
}

void PoolState::close() noexcept {
  std::vector<std::shared_ptr<Retirement>> retirements;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
    retirements.swap(retirements_);
  }
  // Errors of this work were reported where it was enqueued; here only its end counts.
  for (const auto& retirement : retirements) {
    static_cast<void>(backend_.synchronize(retirement->done.get()));
  }
  for (Load* const load : loads_) {
    if (load->uploaded.get().handle != nullptr) {
      static_cast<void>(backend_.synchronize(load->uploaded.get()));
    }
  }
  retirements.clear();
  {
    const std::lock_guard lock(mutex_);
    for (Load* const load : loads_) {
      load->phase = Load::Phase::cancelled;
      load->uploaded = {};
      load->image = load->slot = -1;
    }
    loads_.clear();
  }
  ring_.reset();
  arena_memory_ = {};
  entries_ = {};
  images_ = {};
  events_.clear();
}

AdapterTableView PoolState::table(const PoolTarget& target) const noexcept {
  return {target.shape, entries_.as<const AdapterEntry>() + target.first_entry,
          layout_.slot_entries, backend_.device()};
}

void PoolState::finish(const Retirement& retirement) noexcept {
  arena_.release(retirement.extents);
  if (retirement.image >= 0) image_lent_[static_cast<std::size_t>(retirement.image)] = false;
}

void PoolState::reap() noexcept {
  // A retirement whose event cannot be asked stays: its memory is not given away.
  const auto completed = [this](const std::shared_ptr<Retirement>& retirement) {
    const auto done = backend_.query(retirement->done.get());
    if (!done.ok() || !*done) return false;
    finish(*retirement);
    return true;
  };
  retirements_.erase(std::remove_if(retirements_.begin(), retirements_.end(), completed),
                     retirements_.end());
}

void PoolState::retire(std::shared_ptr<Retirement> retirement) {
  retirements_.push_back(std::move(retirement));
}

void PoolState::reserve_retirements() {
  retirements_.reserve(retirements_.size() + loads_.size() + 1);
}

Status PoolState::wait_for_oldest(Lock& lock) {
  // Shared, so that its event is not lent anew while it is waited for.
  const std::shared_ptr<Retirement> oldest = retirements_.front();
  lock.unlock();
  Status status = backend_.synchronize(oldest->done.get());
  lock.lock();
  if (!status.ok()) return status;
  const auto found = std::find(retirements_.begin(), retirements_.end(), oldest);
  if (found == retirements_.end()) return {};
  finish(*oldest);
  retirements_.erase(found);
  return {};
}

void PoolState::forget(Load& load, Load::Phase phase) noexcept {
  if (load.image >= 0) image_lent_[static_cast<std::size_t>(load.image)] = false;
  if (load.slot >= 0) slot_at(load.slot).state = Slot::State::empty;
  load.image = load.slot = -1;
  load.phase = phase;
  loads_.erase(std::remove(loads_.begin(), loads_.end(), &load), loads_.end());
}

Slot* PoolState::find(AdapterHandle handle) noexcept {
  if (handle.slot < 0 || static_cast<std::size_t>(handle.slot) >= slots_.size()) return nullptr;
  Slot& slot = slots_[static_cast<std::size_t>(handle.slot)];
  return slot.state == Slot::State::resident && slot.version == handle.version ? &slot : nullptr;
}

Status PoolState::not_resident(const char* function, AdapterHandle handle) const noexcept {
  const auto num_slots = static_cast<std::int32_t>(slots_.size());
  if (handle.slot < 0 || handle.slot >= num_slots) {
    return Status::format(StatusCode::invalid_argument,
                          "%s: slot of the handle is %d; it should be 0 to %d", function,
                          handle.slot, num_slots - 1);
  }
  const Slot& slot = slots_[static_cast<std::size_t>(handle.slot)];
  if (slot.state != Slot::State::resident) {
    return Status::format(StatusCode::invalid_argument,
                          "%s: handle is slot %d version %llu, which is no longer resident; the "
                          "slot is empty or being switched",
                          function, handle.slot, print(handle.version));
  }
  return Status::format(StatusCode::invalid_argument,
                        "%s: handle is slot %d version %llu, which is no longer resident; the slot "
                        "holds version %llu",
                        function, handle.slot, print(handle.version), print(slot.version));
}

Status PoolState::pin(AdapterHandle handle) noexcept {
  const std::lock_guard lock(mutex_);
  Slot* const slot = find(handle);
  if (slot == nullptr) return not_resident("pin", handle);
  ++slot->pins;
  slot->last_use = ++clock_;
  return {};
}

Status PoolState::unpin(AdapterHandle handle) noexcept {
  const std::lock_guard lock(mutex_);
  Slot* const slot = find(handle);
  if (slot == nullptr) return not_resident("unpin", handle);
  if (slot->pins == 0) {
    return Status::format(StatusCode::invalid_argument,
                          "unpin: slot %d version %llu is not pinned; every unpin() should follow "
                          "its pin()",
                          handle.slot, print(handle.version));
  }
  --slot->pins;
  return {};
}

bool PoolState::resident(AdapterHandle handle) const noexcept {
  const std::lock_guard lock(mutex_);
  return const_cast<PoolState&>(*this).find(handle) != nullptr;  // find() changes nothing
}

PoolStats PoolState::stats() noexcept {
  const std::lock_guard lock(mutex_);
  reap();
  PoolStats stats;
  stats.arena_bytes = options_.arena_bytes;
  stats.arena_in_use = arena_.in_use();
  stats.table_bytes = slots_.size() * slot_bytes();
  for (const Slot& slot : slots_) {
    if (slot.state != Slot::State::resident) continue;
    ++stats.num_resident;
    stats.weight_bytes += slot.weight_bytes;
    if (slot.pins > 0) ++stats.num_pinned;
  }
  stats.num_loads = num_loads_;
  stats.num_evictions = num_evictions_;
  return stats;
}

std::vector<std::int32_t> PoolState::evictable() const {
  std::vector<std::int32_t> victims;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].state == Slot::State::resident && slots_[i].pins == 0) {
      victims.push_back(static_cast<std::int32_t>(i));
    }
  }
  std::sort(victims.begin(), victims.end(), [this](std::int32_t a, std::int32_t b) {
    return slots_[static_cast<std::size_t>(a)].last_use <
           slots_[static_cast<std::size_t>(b)].last_use;
  });
  return victims;
}

std::int32_t PoolState::slot_to_use() const {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].state == Slot::State::empty) return static_cast<std::int32_t>(i);
  }
  const auto victims = evictable();
  return victims.empty() ? -1 : victims.front();
}

bool PoolState::slot_available() const noexcept {
  const auto usable = std::count_if(slots_.begin(), slots_.end(), [](const Slot& slot) {
    return slot.state == Slot::State::empty ||
           (slot.state == Slot::State::resident && slot.pins == 0);
  });
  const auto waiting = std::count_if(loads_.begin(), loads_.end(), [](const Load* load) {
    return load->phase != Load::Phase::publishing && load->slot < 0;
  });
  return usable > waiting;
}

Status PoolState::no_slot() const noexcept {
  std::int32_t num_pinned = 0;
  for (const Slot& slot : slots_) num_pinned += slot.pins > 0 ? 1 : 0;
  return Status::format(StatusCode::no_room,
                        "pool: of %zu slots %d are pinned and %zu loads are pending; a slot should "
                        "be unpinned, or the pool have more",
                        slots_.size(), num_pinned, loads_.size());
}

Status PoolState::no_memory(const Load& load) const noexcept {
  return Status::format(StatusCode::no_room,
                        "pool: the adapter needs %llu bytes; of %llu arena bytes %llu are free and "
                        "evicting what is unpinned does not make the room",
                        print(load.plan.rounded_bytes), print(arena_.bytes()),
                        print(arena_.free_bytes()));
}

}  // namespace detail
RANKFOLD_NAMESPACE_END
