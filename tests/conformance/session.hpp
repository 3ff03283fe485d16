// What the cases of one run share: the backend, its streams, the seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rankfold/memory.hpp"

namespace rankfold::conformance {

/// A stream under test and how it is called in messages.
struct NamedStream {
  std::string name;
  OwnedStream stream;
};

class Session {
 public:
  /// Streams: inline and worker where the backend has them, else its automatic one. `error()` says
  /// why there are none.
  Session(LoraBackend& backend, std::string asked_for, std::uint64_t seed);

  LoraBackend& backend() noexcept { return backend_; }
  std::vector<NamedStream>& streams() noexcept { return streams_; }
  /// The stream that behaves most like a device's queue.
  Stream stream() const noexcept { return streams_.back().stream.get(); }
  std::uint64_t seed() const noexcept { return seed_; }
  const std::string& asked_for() const noexcept { return asked_for_; }
  const std::string& error() const noexcept { return error_; }

 private:
  LoraBackend& backend_;
  std::string asked_for_;
  std::uint64_t seed_;
  std::vector<NamedStream> streams_;
  std::string error_;
};

}  // namespace rankfold::conformance
