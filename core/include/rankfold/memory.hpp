// Owners for use outside the hot path: device buffers, streams, events, and the adapter table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "rankfold/adapter_table.hpp"
#include "rankfold/backend.hpp"
#include "rankfold/export.hpp"
#include "rankfold/status.hpp"

RANKFOLD_NAMESPACE_BEGIN

/// Memory of a backend, freed with the object. Move-only.
class RANKFOLD_EXPORT Buffer {
 public:
  Buffer() = default;
  /// Errors as LoraBackend::allocate.
  static Result<Buffer> create(LoraBackend& backend, std::size_t bytes,
                               MemoryKind kind = MemoryKind::device) noexcept;
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer moved(std::move(other));
    swap(moved);
    return *this;
  }
  ~Buffer();

  /// Null when the buffer is empty.
  void* data() const noexcept { return data_; }
  template <class T>
  T* as() const noexcept {
    return static_cast<T*>(data_);
  }
  std::size_t bytes() const noexcept { return bytes_; }
  /// The whole buffer as an operation takes it.
  Workspace workspace() const noexcept;

 private:
  void swap(Buffer& other) noexcept {
    std::swap(backend_, other.backend_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(kind_, other.kind_);
  }
  LoraBackend* backend_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  MemoryKind kind_ = MemoryKind::device;
};

/// A stream of a backend, destroyed (after waiting) with the object. Move-only.
class RANKFOLD_EXPORT OwnedStream {
 public:
  OwnedStream() = default;
  /// Errors as LoraBackend::create_stream.
  static Result<OwnedStream> create(LoraBackend& backend,
                                    StreamMode mode = StreamMode::automatic) noexcept;
  OwnedStream(OwnedStream&& other) noexcept { swap(other); }
  OwnedStream& operator=(OwnedStream&& other) noexcept {
    OwnedStream moved(std::move(other));
    swap(moved);
    return *this;
  }
  ~OwnedStream();
  Stream get() const noexcept { return stream_; }
  operator Stream() const noexcept { return stream_; }  // NOLINT: it is a stream
  /// As LoraBackend::synchronize.
  Status synchronize() noexcept;

 private:
  void swap(OwnedStream& other) noexcept {
    std::swap(backend_, other.backend_);
    std::swap(stream_, other.stream_);
  }
  LoraBackend* backend_ = nullptr;
  Stream stream_;
};

/// An owned adapter table: entries in device memory, all rank 0 at first. Weights stay the host's.
/// Move-only. One thread may write entries while another enqueues operations on the view.
class RANKFOLD_EXPORT AdapterTable {
 public:
  AdapterTable() noexcept;
  AdapterTable(AdapterTable&& other) noexcept;
  AdapterTable& operator=(AdapterTable&& other) noexcept;
  /// Waits for copies that still read its staging memory.
  ~AdapterTable();
  /// Errors: invalid_argument (shape), out_of_memory.
  static Result<AdapterTable> create(LoraBackend& backend, const TableShape& shape) noexcept;

  /// What the operations take; valid as long as the object.
  AdapterTableView view() const noexcept { return view_; }

  /// Binds memory that the host owns; validated, then enqueued on the stream in order. The entry is
  /// copied: `entry` may go at once. in_limit 0 means in; strides 0 mean dense (in_limit, rank).
  /// Not for the hot path: may wait for staging memory, whose earlier copy must have run.
  /// Errors: invalid_argument (place, rank, strides, null, scaling not finite), device_error.
  Status set_entry(std::int32_t slot, std::int32_t expert, std::int32_t slice,
                   const AdapterEntry& entry, Stream stream) noexcept;
  /// Makes all entries of the slot rank 0. Errors: invalid_argument (slot), device_error.
  Status clear_slot(std::int32_t slot, Stream stream) noexcept;

  /// Binds stacked tensors whole (num_experts 1): a [slots, slices * max_rank, in], of which slice
  /// i of a slot starts at row i * max_rank; b [slots, sum of out, max_rank]; ranks and scalings
  /// host arrays [slots * slices]. dtypes must be the table's; a and b dense in their last
  /// dimension. Errors: invalid_argument, before any entry is written; device_error.
  Status bind_stacked(const ConstTensorView& a, const ConstTensorView& b, const std::int32_t* ranks,
                      const float* scalings, Stream stream) noexcept;

 private:
  struct Staging;
  void swap(AdapterTable& other) noexcept;
  Status write_entries(std::int32_t slot, std::int64_t first, std::int64_t count,
                       const AdapterEntry* entries, Stream stream) noexcept;
  LoraBackend* backend_ = nullptr;
  AdapterTableView view_;
  Buffer entries_;
  std::unique_ptr<Staging> staging_;  // goes before the entries that its copies write
};

RANKFOLD_NAMESPACE_END
