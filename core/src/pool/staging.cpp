#include "pool/staging.hpp"

#include "pool/arena.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

StagingRing::~StagingRing() {
  for (Chunk& chunk : chunks_) {
    if (chunk.event.handle == nullptr) continue;
    // An error here was reported by the load that made the copy.
    if (chunk.state == State::in_flight) static_cast<void>(backend_->synchronize(chunk.event));
    backend_->destroy_event(chunk.event);
  }
}

Status StagingRing::create(std::size_t bytes) {
  chunk_bytes_ = bytes / kNumChunks / kArenaUnit * kArenaUnit;
  auto memory = Buffer::create(*backend_, chunk_bytes_ * kNumChunks, MemoryKind::pinned);
  if (!memory.ok()) return memory.status();
  memory_ = std::move(*memory);
  for (Chunk& chunk : chunks_) {
    const auto event = backend_->create_event();
    if (!event.ok()) return event.status();
    chunk.event = *event;
  }
  return {};
}

std::byte* StagingRing::data(std::size_t chunk) const noexcept {
  return memory_.as<std::byte>() + chunk * chunk_bytes_;
}

Result<std::size_t> StagingRing::claim() {
  std::unique_lock lock(mutex_);
  for (;;) {
    std::size_t oldest = kNumChunks;
    std::size_t num_lost = 0;
    for (std::size_t i = 0; i < kNumChunks; ++i) {
      if (chunks_[i].state == State::idle) {
        chunks_[i].state = State::lent;
        return i;
      }
      if (chunks_[i].state == State::lost) ++num_lost;
      if (chunks_[i].state == State::in_flight &&
          (oldest == kNumChunks || chunks_[i].ticket < chunks_[oldest].ticket)) {
        oldest = i;
      }
    }
    if (num_lost == kNumChunks) {
      return Status(StatusCode::device_error,
                    "pool: the device lost every chunk of the staging ring");
    }
    if (oldest == kNumChunks) {  // other loads are writing all of them
      changed_.wait(lock);
      continue;
    }
    chunks_[oldest].state = State::lent;
    lock.unlock();
    if (Status status = backend_->synchronize(chunks_[oldest].event); !status.ok()) {
      set_state(oldest, State::in_flight);
      return status;
    }
    return oldest;
  }
}

Status StagingRing::submit(std::size_t chunk, void* destination, std::size_t bytes, Stream stream) {
  if (Status status =
          backend_->copy(destination, data(chunk), bytes, CopyKind::host_to_device, stream);
      !status.ok()) {
    set_state(chunk, State::idle);
    return status;
  }
  Status status = backend_->record(chunks_[chunk].event, stream);
  if (!status.ok()) {
    // Nothing says when the copy has run, so it must have run before the chunk is lent again.
    set_state(chunk, backend_->synchronize(stream).ok() ? State::idle : State::lost);
    return status;
  }
  set_state(chunk, State::in_flight);
  return {};
}

void StagingRing::drop(std::size_t chunk) { set_state(chunk, State::idle); }

void StagingRing::set_state(std::size_t chunk, State state) {
  const std::lock_guard lock(mutex_);
  chunks_[chunk].state = state;
  chunks_[chunk].ticket = next_ticket_++;
  changed_.notify_all();
}

}  // namespace detail
RANKFOLD_NAMESPACE_END
