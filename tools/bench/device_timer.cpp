#include "device_timer.hpp"

#include "must.hpp"

namespace rankfold::tools {
namespace {

class HostRecording : public Recording {
 public:
  explicit HostRecording(std::function<void()> enqueue) : enqueue_(std::move(enqueue)) {}
  void run() { enqueue_(); }

 private:
  std::function<void()> enqueue_;
};

class HostTimer : public DeviceTimer {
 public:
  HostTimer(LoraBackend& backend, Stream stream) : backend_(backend), stream_(stream) {}

  std::unique_ptr<Recording> record(std::function<void()> enqueue) override {
    return std::make_unique<HostRecording>(std::move(enqueue));
  }

  std::vector<std::vector<double>> replay(const std::vector<Recording*>& recordings,
                                          const Effort& effort) override {
    std::vector<std::function<void()>> runs;
    runs.reserve(recordings.size());
    for (Recording* recording : recordings) {
      runs.emplace_back([this, recording] {
        static_cast<HostRecording*>(recording)->run();
        must(backend_.synchronize(stream_));
      });
    }
    return run_in_turn(runs, effort);
  }

  Yardsticks yardsticks(const MachineLimits& limits) override {
    return measure_yardsticks(backend_, stream_, limits);
  }

 private:
  LoraBackend& backend_;
  Stream stream_;
};

}  // namespace

std::unique_ptr<DeviceTimer> make_device_timer(LoraBackend& backend, Stream stream) {
#ifdef RANKFOLD_BENCH_CUDA
  if (backend.device().type == DeviceType::cuda) return make_cuda_timer(backend, stream);
#endif
  return std::make_unique<HostTimer>(backend, stream);
}

}  // namespace rankfold::tools
