// AdapterPool: many adapters resident on one device, loaded and evicted while steps run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "rankfold/adapter.hpp"
#include "rankfold/adapter_table.hpp"
#include "rankfold/backend.hpp"
#include "rankfold/export.hpp"
#include "rankfold/status.hpp"
#include "rankfold/target_spec.hpp"

RANKFOLD_NAMESPACE_BEGIN

/// A resident adapter. A version is never reused: a handle of an evicted adapter is recognised.
struct AdapterHandle {
  std::int32_t slot = -1;
  std::int32_t reserved = 0;
  std::uint64_t version = 0;
  friend constexpr bool operator==(const AdapterHandle&, const AdapterHandle&) = default;
};

/// Whether weights may lose bits on their way into a table.
enum class Narrowing : std::int32_t { refuse = 0, allow = 1 };

struct PoolOptions {
  std::int32_t num_slots = 0;
  std::int32_t max_rank = 0;        ///< of every target
  std::uint64_t arena_bytes = 0;    ///< for all weights, allocated with the pool
  std::uint64_t staging_bytes = 0;  ///< pinned upload ring, at least 4096; 0: 4 MiB
  DType a_dtype = DType::bf16;      ///< of every table's A and B
  DType b_dtype = DType::bf16;
  /// f32 -> f16/bf16, f16 <-> bf16. Widening to a float32 table is exact and always allowed.
  Narrowing narrowing = Narrowing::refuse;
  /// What supports() is asked at every load, so that a missing kernel is found then (embeddings:
  /// with int32 ids).
  DType x_dtype = DType::bf16;
  DType y_dtype = DType::bf16;
};

/// Sizes in bytes, and counts.
struct PoolStats {
  std::uint64_t arena_bytes = 0;  ///< budget
  /// Allocated: resident, pending, or evicted but perhaps still read; rounding included.
  std::uint64_t arena_in_use = 0;
  std::uint64_t weight_bytes = 0;  ///< of resident adapters: sum of real ranks, without rounding
  std::uint64_t table_bytes = 0;   ///< entries, apart from the arena
  std::int64_t num_resident = 0;
  std::int64_t num_pinned = 0;  ///< slots with at least one pin
  std::uint64_t num_loads = 0;  ///< published so far
  std::uint64_t num_evictions = 0;
};

/// An adapter on its way into the pool. Move-only; destroying it unpublished cancels it. One thread
/// at a time. It may outlive the pool, which cancels it.
class RANKFOLD_EXPORT Pending {
 public:
  Pending() = default;
  Pending(Pending&&) noexcept;
  Pending& operator=(Pending&&) noexcept;
  ~Pending();

  /// true when no step would wait for the upload after publish(): it has arrived, or it is deferred
  /// (see AdapterPool::prepare). Does not wait. Errors: cancelled, device_error, invalid_argument
  /// (published already, or failed).
  Result<bool> poll() noexcept;
  /// The arena memory returns after the upload; publish() then answers cancelled.
  void cancel() noexcept;

 private:
  friend class AdapterPool;
  struct State;
  explicit Pending(std::shared_ptr<State> state) noexcept;
  std::shared_ptr<State> state_;
};

/// Fixed slots, one arena, one table per target. Load, publish and unload never allocate or free
/// device memory; pin and unpin allocate nothing at all.
///
/// An adapter takes the bytes of its real ranks: dense A and B in the tables' dtypes and a float32
/// bias, each rounded up to 16 bytes, and a matrix that several bindings share only once. It need
/// not lie in one piece. The entries of all tables are one device array [slot][target][expert]
/// [slice] (stats().table_bytes), so that a slot is published by one copy; up to 8 slots' images of
/// it are pinned host memory, which bounds the loads that may be pending at once.
///
/// Room. A load needs a slot and memory. What is free is used first, then what is unpinned is
/// evicted, the least recently pinned or published first. Nothing is evicted before publish(), so a
/// failed or cancelled load leaves the pool as it was. A pending load holds its memory, but no
/// slot and no victim: pins of others come first, and may make publish() answer no_room, after
/// which it may be tried again.
///
/// Threads. All functions may be called at once from several threads: one loads while others pin,
/// enqueue steps and unpin. No lock is held while the device is waited for. Publishing enqueues on
/// the step streams, so the backend's streams must take calls from several threads. A step must pin
/// the slots that it uses before it enqueues its first operation, and unpin after the last.
class RANKFOLD_EXPORT AdapterPool {
 public:
  /// The backend must outlive the pool. Strings of the targets are copied.
  /// Errors: invalid_argument (targets, options), out_of_memory (names the bytes).
  static Result<AdapterPool> create(LoraBackend& backend, std::span<const TargetSpec> targets,
                                    const PoolOptions& options);
  AdapterPool(AdapterPool&&) noexcept;
  AdapterPool& operator=(AdapterPool&&) noexcept;
  /// Waits for uploads and switches, and cancels pending loads. Steps must have run: the host
  /// synchronises their streams first.
  ~AdapterPool();

  /// The table of a target, by index or by TargetSpec::key; valid as long as the pool.
  /// Errors: invalid_argument.
  Result<AdapterTableView> table(std::int32_t target) const noexcept;
  Result<AdapterTableView> table(std::string_view key) const noexcept;

  /// Validates everything (targets, ranks against max_rank naming both, shapes, dtypes,
  /// supports() of the targets touched), then enqueues the upload through the staging ring into
  /// fresh arena memory. The adapter's bytes may go when prepare returns.
  ///
  /// Where the arena has room only after evictions, the load is deferred: the weights are kept in
  /// host memory, and publish() evicts, uploads and switches.
  ///
  /// May wait for the device (staging ring, memory of evicted adapters): not for the thread that
  /// runs steps. Errors: invalid_argument, unsupported, no_room, device_error; nothing changed.
  Result<Pending> prepare(const Adapter& adapter, Stream upload_stream);
  /// The same for weights in host memory that no file holds: what a training engine publishes.
  /// The views are read before this returns.
  Result<Pending> prepare(std::span<const AdapterBinding> bindings, Stream upload_stream);

  /// Switches the slot's entries by one copy, ordered after the upload and between steps on all the
  /// streams named; the memory of what was there returns after an event that all of them reach.
  /// Targets that the adapter lacks become rank 0 in the slot. `step_streams` must name every
  /// stream on which steps run. Never waits, except in a deferred load: for a free part of the
  /// staging ring (a ring of the largest adapter's size avoids it), and for memory that is on its
  /// way back from adapters which left before.
  ///
  /// Errors: no_room (what could be evicted has been pinned meanwhile), cancelled, device_error,
  /// invalid_argument. `pending` is consumed by success alone: after no_room, and after a
  /// device_error before the switch was enqueued, the pool is as it was and publish may be tried
  /// again. Where the device fails in a deferred load's upload, its victims are gone.
  Result<AdapterHandle> publish(Pending&& pending, std::span<const Stream> step_streams);

  /// prepare and publish. Waits for the upload before it switches, so that no step does.
  Result<AdapterHandle> load(const Adapter& adapter, Stream upload_stream,
                             std::span<const Stream> step_streams);
  Result<AdapterHandle> load(std::span<const AdapterBinding> bindings, Stream upload_stream,
                             std::span<const Stream> step_streams);

  /// Marks the adapter as used by a step that is being enqueued: it is not evicted until as many
  /// unpin() as pin(). Errors: invalid_argument when the handle's version is no longer resident,
  /// naming slot and versions.
  Status pin(AdapterHandle handle) noexcept;
  /// Errors: invalid_argument when it is not pinned.
  Status unpin(AdapterHandle handle) noexcept;

  /// Removes an adapter: its slot becomes rank 0 everywhere, between steps on the streams named.
  /// Errors: invalid_argument (not resident), no_room (pinned), device_error.
  Status unload(AdapterHandle handle, std::span<const Stream> step_streams);

  /// Whether this version still has its slot.
  bool resident(AdapterHandle handle) const noexcept;
  /// Sizes and counts at this moment.
  PoolStats stats() const noexcept;

 private:
  friend class Pending;
  struct State;
  explicit AdapterPool(std::shared_ptr<State> state) noexcept;
  Result<AdapterHandle> publish_with(Pending& pending, std::span<const Stream> step_streams,
                                     bool wait_for_upload);
  std::shared_ptr<State> state_;
};

RANKFOLD_NAMESPACE_END
