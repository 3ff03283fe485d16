// Streams and events: handles of a backend's in-order queues. They own nothing.
#pragma once

#include <cstdint>

#include "rankfold/export.hpp"

RANKFOLD_NAMESPACE_BEGIN

/// An in-order queue of a backend or of the host (cudaStream_t, ...). A null handle is refused by
/// every operation: no operation uses a default stream.
struct Stream {
  void* handle = nullptr;
  friend constexpr bool operator==(Stream, Stream) = default;
};

/// A point in a stream.
struct Event {
  void* handle = nullptr;
  friend constexpr bool operator==(Event, Event) = default;
};

/// How a stream runs what is enqueued.
enum class StreamMode : std::int32_t {
  automatic = 0,  ///< reference: inline_; a GPU: its own queue
  inline_ = 1,    ///< operations run in the caller, under the stream's mutex (CPU backends)
  worker = 2,     ///< operations run later on a thread, as on a GPU (CPU backends)
};

RANKFOLD_NAMESPACE_END
