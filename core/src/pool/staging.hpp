// The pinned ring through which weights go to the device.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "rankfold/backend.hpp"
#include "rankfold/export.hpp"
#include "rankfold/memory.hpp"
#include "rankfold/status.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

/// Thread-safe. A chunk is lent to one writer, then in flight until its copy's event has completed;
/// only then it is lent again. No lock is held while waiting for the device.
class StagingRing {
 public:
  static constexpr std::size_t kNumChunks = 8;
  static constexpr std::size_t kMinBytes = 4096;

  explicit StagingRing(LoraBackend& backend) noexcept : backend_(&backend) {}
  /// Waits for chunks in flight.
  ~StagingRing();
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;

  /// Allocates the ring and its events.
  Status create(std::size_t bytes);
  std::size_t chunk_bytes() const noexcept { return chunk_bytes_; }

  /// A chunk to write; waits while all of them are in use. Must be followed by submit() or drop().
  Result<std::size_t> claim();
  std::byte* data(std::size_t chunk) const noexcept;
  /// Enqueues the copy of the chunk's first bytes to the device.
  Status submit(std::size_t chunk, void* destination, std::size_t bytes, Stream stream);
  void drop(std::size_t chunk);

 private:
  enum class State { idle, lent, in_flight, lost };
  struct Chunk {
    State state = State::idle;
    std::uint64_t ticket = 0;  // order of submission
    Event event;
  };
  void set_state(std::size_t chunk, State state);

  LoraBackend* backend_;
  Buffer memory_;
  std::size_t chunk_bytes_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<Chunk, kNumChunks> chunks_;
  std::uint64_t next_ticket_ = 0;
};

}  // namespace detail
RANKFOLD_NAMESPACE_END
