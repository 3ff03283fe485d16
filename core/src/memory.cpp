#include "rankfold/memory.hpp"

RANKFOLD_NAMESPACE_BEGIN

Result<Buffer> Buffer::create(LoraBackend& backend, std::size_t bytes, MemoryKind kind) noexcept {
  auto memory = backend.allocate(bytes, kind);
  if (!memory.ok()) return memory.status();
  Buffer buffer;
  buffer.backend_ = &backend;
  buffer.data_ = *memory;
  buffer.bytes_ = bytes;
  buffer.kind_ = kind;
  return buffer;
}

Buffer::~Buffer() {
  if (backend_ != nullptr) backend_->deallocate(data_, kind_);
}

Workspace Buffer::workspace() const noexcept {
  return {data_, bytes_, backend_ != nullptr ? backend_->device() : Device{}};
}

Result<OwnedStream> OwnedStream::create(LoraBackend& backend, StreamMode mode) noexcept {
  auto stream = backend.create_stream(mode);
  if (!stream.ok()) return stream.status();
  OwnedStream owned;
  owned.backend_ = &backend;
  owned.stream_ = *stream;
  return owned;
}

OwnedStream::~OwnedStream() {
  if (backend_ != nullptr) backend_->destroy_stream(stream_);
}

Status OwnedStream::synchronize() noexcept {
  if (backend_ == nullptr) {
    return Status(StatusCode::invalid_argument, "synchronize: the stream was moved from");
  }
  return backend_->synchronize(stream_);
}

RANKFOLD_NAMESPACE_END
