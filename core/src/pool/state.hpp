// The inside of AdapterPool: slots, memory, loads on their way, and what switches leave behind.
//
// Locking: mutex_ guards everything that changes after create(), and is never held over a call of
// the backend that may wait: only query() is called under it. The ring and the events have locks of
// their own. A slot whose entries are being switched is in state `switching`: nobody can pin it and
// nobody else evicts it, so the device work of a switch runs without the lock.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "pool/arena.hpp"
#include "pool/events.hpp"
#include "pool/plan.hpp"
#include "pool/staging.hpp"
#include "rankfold/memory.hpp"
#include "rankfold/pool.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

struct Slot {
  enum class State { empty, resident, switching, lost };
  State state = State::empty;
  std::int32_t pins = 0;
  std::uint64_t version = 0;
  std::uint64_t last_use = 0;
  std::uint64_t weight_bytes = 0;
  std::vector<Extent> extents;
};

/// What must stay until a point of the streams: memory of an evicted adapter, an image being read.
struct Retirement {
  PooledEvent done;
  std::vector<PooledEvent> joins;  // the other streams' ways into `done`
  std::vector<Extent> extents;
  std::int32_t image = -1;
};

/// An adapter between prepare and publish.
struct Load {
  enum class Phase {
    preparing,
    ready,     ///< in the arena, or on its way there
    deferred,  ///< in host memory: the arena has room only after evictions, at publish
    publishing,
    ended,      ///< published, or failed
    cancelled,  ///< by the caller, or with the pool
  };
  Phase phase = Phase::preparing;
  Plan plan;
  Placement placement;
  std::vector<std::byte> host_copy;  // deferred: the weights
  std::int32_t image = -1;           // -1: holds nothing of the pool
  std::int32_t slot = -1;            // of a victim that was evicted for this load
  std::shared_ptr<Retirement> rest;  // made early, since cancel() must not allocate
  PooledEvent uploaded;
  Stream stream;
};

/// One slot's entries to be written: from an image, or as rank 0.
struct SlotWrite {
  std::int32_t slot = 0;
  const AdapterEntry* image = nullptr;
};

/// How far a switch came. settled: `done` was recorded, or the host has waited for the writes.
struct SwitchResult {
  Status status;
  std::size_t num_written = 0;
  bool settled = false;
  bool waited = false;  ///< by the host: `done` says nothing
};

/// Whether publishing waits on the host for the upload, so that no step waits for it on the device.
enum class UploadWait { on_device, on_host };

class PoolState {
 public:
  /// One a slot and one more, so that a load need not wait for the switch before it.
  static constexpr std::int32_t kMaxImages = 8;

  PoolState(LoraBackend& backend, PoolLayout layout, const PoolOptions& options);
  ~PoolState() { close(); }
  PoolState(const PoolState&) = delete;
  PoolState& operator=(const PoolState&) = delete;

  Status create();
  void close() noexcept;

  AdapterTableView table(const PoolTarget& target) const noexcept;
  const PoolLayout& layout() const noexcept { return layout_; }

  // prepare.cpp
  Status prepare(std::span<const AdapterBinding> bindings, Stream stream, Load& load);
  Result<bool> poll(const Load& load) noexcept;
  void cancel(Load& load) noexcept;

  // publish.cpp
  Result<AdapterHandle> publish(Load& load, std::span<const Stream> streams, UploadWait wait);
  Status unload(AdapterHandle handle, std::span<const Stream> streams);

  Status pin(AdapterHandle handle) noexcept;
  Status unpin(AdapterHandle handle) noexcept;
  bool resident(AdapterHandle handle) const noexcept;
  PoolStats stats() noexcept;

 private:
  using Lock = std::unique_lock<std::mutex>;

  // With the lock held.
  void reap() noexcept;
  /// Gives back what it kept.
  void finish(const Retirement& retirement) noexcept;
  void retire(std::shared_ptr<Retirement> retirement);
  /// Room for one more, and for every pending load, so that retire() does not allocate.
  void reserve_retirements();
  Slot* find(AdapterHandle handle) noexcept;
  Status not_resident(const char* function, AdapterHandle handle) const noexcept;
  Status no_slot() const noexcept;
  Status no_memory(const Load& load) const noexcept;
  bool slot_available() const noexcept;
  bool fits_with_retired(const Load& load) const;
  /// Victims in the order of eviction.
  std::vector<std::int32_t> evictable() const;
  /// An empty slot, else the victim's; -1: none.
  std::int32_t slot_to_use() const;
  /// The load's image and slot return, and it ends.
  void forget(Load& load, Load::Phase phase) noexcept;
  Slot& slot_at(std::int32_t index) noexcept { return slots_[static_cast<std::size_t>(index)]; }
  /// Gives the lock up while waiting.
  Status wait_for_oldest(Lock& lock);

  // Without.
  Status reserve(Load& load);
  Status send(Load& load);
  void abandon(Load& load);
  /// Evicts for a deferred load and uploads it.
  Status make_room(Load& load, std::span<const Stream> streams);
  Status upload_deferred(Load& load);
  SwitchResult switch_entries(std::span<const Stream> streams, const PooledEvent* upload,
                              std::span<const SlotWrite> writes, Retirement& retirement);
  Status enqueue_switch(std::span<const Stream> streams, const PooledEvent* upload,
                        std::span<const SlotWrite> writes, Retirement& retirement,
                        std::size_t& num_written);

  std::byte* arena_base() const noexcept { return arena_memory_.as<std::byte>(); }
  AdapterEntry* image_at(std::int32_t image) const noexcept {
    return images_.as<AdapterEntry>() + image * layout_.slot_entries;
  }
  std::size_t slot_bytes() const noexcept {
    return static_cast<std::size_t>(layout_.slot_entries) * sizeof(AdapterEntry);
  }

  LoraBackend& backend_;
  const PoolLayout layout_;
  const PoolOptions options_;
  Buffer entries_;       // [slot][target][expert][slice], so that a slot is one copy
  Buffer images_;        // pinned: a slot's entries on their way
  Buffer arena_memory_;  // all weights
  std::optional<StagingRing> ring_;
  EventPool events_;

  mutable std::mutex mutex_;
  bool closed_ = false;
  Arena arena_;
  std::vector<Slot> slots_;
  std::vector<bool> image_lent_;
  std::vector<Load*> loads_;  // that hold something of the pool
  std::vector<std::shared_ptr<Retirement>> retirements_;
  std::uint64_t next_version_ = 1;
  std::uint64_t clock_ = 0;
  std::uint64_t num_loads_ = 0;
  std::uint64_t num_evictions_ = 0;
};

}  // namespace detail
RANKFOLD_NAMESPACE_END
