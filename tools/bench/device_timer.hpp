// What timing needs of a device beyond LoraBackend: work that is recorded once and replayed, a
// clock, and yardsticks.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rankfold/backend.hpp"
#include "timing.hpp"
#include "yardsticks.hpp"

namespace rankfold::tools {

/// Work that can be run again and again.
class Recording {
 public:
  virtual ~Recording() = default;
  /// Launches, copies and fills of one replay; -1: not known.
  virtual int num_nodes() const { return -1; }
};

class DeviceTimer {
 public:
  virtual ~DeviceTimer() = default;

  /// Whether a replay is run by the device alone, the host's part of each call left out.
  virtual bool has_graphs() const { return false; }
  /// `enqueue` enqueues on the timer's stream and neither allocates nor waits. May be called at
  /// once or at each replay. Throws CommandError.
  virtual std::unique_ptr<Recording> record(std::function<void()> enqueue) = 0;
  /// Replays each once to warm up and then all in turn. Seconds of each replay, a list a recording.
  virtual std::vector<std::vector<double>> replay(const std::vector<Recording*>& recordings,
                                                  const Effort& effort) = 0;
  virtual Yardsticks yardsticks(const MachineLimits& limits) = 0;
  /// Of the device's last level; 0: not known here.
  virtual std::int64_t cache_bytes() const { return 0; }
  /// (what, which version) of driver, runtime, device, for the head of a report.
  virtual std::vector<std::pair<std::string, std::string>> versions() const { return {}; }

  /// Timing of one recording of `units` units.
  Timing time(Recording& recording, int units, const Effort& effort) {
    return summarize(replay({&recording}, effort).front(), units);
  }
};

/// The timer of the backend's device: CUDA graphs and events where the backend is of a CUDA device
/// and the command was built with CUDA, else the host's clock round enqueueing and waiting.
std::unique_ptr<DeviceTimer> make_device_timer(LoraBackend& backend, Stream stream);

#ifdef RANKFOLD_BENCH_CUDA
std::unique_ptr<DeviceTimer> make_cuda_timer(LoraBackend& backend, Stream stream);
#endif

}  // namespace rankfold::tools
