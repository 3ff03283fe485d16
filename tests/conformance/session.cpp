#include "session.hpp"

namespace rankfold::conformance {

Session::Session(LoraBackend& backend, std::string asked_for, std::uint64_t seed)
    : backend_(backend), asked_for_(std::move(asked_for)), seed_(seed) {
  const auto add = [&](StreamMode mode, const char* name) {
    auto stream = OwnedStream::create(backend_, mode);
    if (stream.ok()) {
      streams_.push_back({name, std::move(*stream)});
    } else {
      error_ = std::string("create_stream: ") + stream.status().message();
    }
  };
  add(StreamMode::inline_, "inline");
  add(StreamMode::worker, "worker");
  if (streams_.empty()) add(StreamMode::automatic, "automatic");
  if (!streams_.empty()) error_.clear();
}

}  // namespace rankfold::conformance
