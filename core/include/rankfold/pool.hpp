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
  std::uint64_t staging_bytes = 0;  ///< pinned upload ring; 0: 4 MiB
  DType a_dtype = DType::bf16;      ///< of every table's A and B
  DType b_dtype = DType::bf16;
  /// f32 -> f16/bf16, f16 <-> bf16. Widening to a float32 table is exact and always allowed.
  Narrowing narrowing = Narrowing::refuse;
  /// What supports() is asked at every load, so that a missing kernel is found then.
  DType x_dtype = DType::bf16;
  DType y_dtype = DType::bf16;
};

/// Sizes in bytes, and counts.
struct PoolStats {
  std::uint64_t arena_bytes = 0;   ///< budget
  std::uint64_t arena_in_use = 0;  ///< allocated to adapters, rounding included
  std::uint64_t weight_bytes = 0;  ///< sum of real ranks, without rounding
  std::uint64_t table_bytes = 0;   ///< entries, apart from the arena
  std::int64_t num_resident = 0;
  std::int64_t num_pinned = 0;  ///< slots with at least one pin
  std::uint64_t num_loads = 0;  ///< published so far
  std::uint64_t num_evictions = 0;
};

/// An adapter on its way into the pool. Move-only; destroying it unpublished cancels it.
class RANKFOLD_EXPORT Pending {
 public:
  Pending() = default;
  Pending(Pending&&) noexcept;
  Pending& operator=(Pending&&) noexcept;
  ~Pending();

  /// true when the upload has arrived. Does not wait.
  Result<bool> poll() noexcept;
  /// The arena memory returns after the upload; publish() then answers cancelled.
  void cancel() noexcept;

 private:
  friend class AdapterPool;
  struct State;
  explicit Pending(std::shared_ptr<State> state) noexcept;
  std::shared_ptr<State> state_;
};

/// Fixed slots, one arena, one table per target. Thread-safe: one thread may load while another
/// runs steps. Load, publish and unload never allocate or free device memory.
class RANKFOLD_EXPORT AdapterPool {
 public:
  /// Errors: invalid_argument (targets, options), out_of_memory (names the bytes), unsupported
  /// (the backend has no kernel for these dtypes and shapes, naming the target).
  static Result<AdapterPool> create(LoraBackend& backend, std::span<const TargetSpec> targets,
                                    const PoolOptions& options);
  AdapterPool(AdapterPool&&) noexcept;
  AdapterPool& operator=(AdapterPool&&) noexcept;
  /// Waits for uploads and for the streams of past steps.
  ~AdapterPool();

  /// The table of a target, by index or by TargetSpec::key; valid as long as the pool.
  /// Errors: invalid_argument.
  Result<AdapterTableView> table(std::int32_t target) const noexcept;
  Result<AdapterTableView> table(std::string_view key) const noexcept;

  /// Validates everything (targets, ranks against max_rank naming both, dtypes, supports()), then
  /// enqueues the upload through the staging ring into fresh arena memory. The adapter's bytes may
  /// go when poll() says true. Evicts, least recently used and unpinned first, when no slot or no
  /// arena room is free. Errors: invalid_argument, unsupported, no_room (nothing changed).
  Result<Pending> prepare(const Adapter& adapter, Stream upload_stream);

  /// Switches the slot's entries by one copy, ordered after the upload and between steps on all the
  /// streams named; the memory of what was there returns after events on those streams. Targets
  /// that the adapter lacks become rank 0 in the slot. Errors: cancelled, device_error.
  Result<AdapterHandle> publish(Pending pending, std::span<const Stream> step_streams);

  /// prepare and publish.
  Result<AdapterHandle> load(const Adapter& adapter, Stream upload_stream,
                             std::span<const Stream> step_streams);

  /// Marks the adapter as used by a step that is being enqueued: it is not evicted until unpin().
  /// Errors: invalid_argument when the handle's version is no longer resident.
  Status pin(AdapterHandle handle) noexcept;
  /// Errors: invalid_argument when it is not pinned.
  Status unpin(AdapterHandle handle) noexcept;

  /// Removes an adapter: its slot becomes rank 0 everywhere, between steps on the streams named.
  /// Errors: invalid_argument (not resident), no_room (pinned).
  Status unload(AdapterHandle handle, std::span<const Stream> step_streams);

  bool resident(AdapterHandle handle) const noexcept;
  PoolStats stats() const noexcept;

 private:
  friend class Pending;
  struct State;
  explicit AdapterPool(std::shared_ptr<State> state) noexcept;
  std::shared_ptr<State> state_;
};

RANKFOLD_NAMESPACE_END
