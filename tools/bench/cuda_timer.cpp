// CUDA graphs and events for the bench. The backend's stream handle is the cudaStream_t.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <fstream>

#include "cuda_kernels.hpp"
#include "cuda_matrix_rate.hpp"
#include "device_timer.hpp"
#include "must.hpp"

namespace rankfold::tools {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kCopyBytes = 2048 * kMiB;  // source and destination together

void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  (void)cudaGetLastError();
  throw CommandError(kExitFailure, fmt::format("{}: {} ({})", call, cudaGetErrorString(error),
                                               cudaGetErrorName(error)));
}

class GraphRecording : public Recording {
 public:
  GraphRecording(cudaStream_t stream, const std::function<void()>& enqueue) {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
          "cudaStreamBeginCapture");
    try {
      enqueue();
    } catch (...) {
      (void)cudaStreamEndCapture(stream, &graph_);
      destroy();
      throw;
    }
    try {
      check(cudaStreamEndCapture(stream, &graph_), "cudaStreamEndCapture");
      std::size_t count = 0;
      check(cudaGraphGetNodes(graph_, nullptr, &count), "cudaGraphGetNodes");
      num_nodes_ = static_cast<int>(count);
      check(cudaGraphInstantiate(&executable_, graph_, 0), "cudaGraphInstantiate");
      check(cudaGraphUpload(executable_, stream), "cudaGraphUpload");
    } catch (...) {
      destroy();
      throw;
    }
  }
  GraphRecording(const GraphRecording&) = delete;
  GraphRecording& operator=(const GraphRecording&) = delete;
  ~GraphRecording() override { destroy(); }

  int num_nodes() const override { return num_nodes_; }
  void launch(cudaStream_t stream) {
    check(cudaGraphLaunch(executable_, stream), "cudaGraphLaunch");
  }

 private:
  void destroy() {
    if (executable_ != nullptr) (void)cudaGraphExecDestroy(executable_);
    if (graph_ != nullptr) (void)cudaGraphDestroy(graph_);
    (void)cudaGetLastError();
  }
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
  int num_nodes_ = 0;
};

// Events for the edges of replays that follow each other without a gap.
class Edges {
 public:
  explicit Edges(int count) : events_(static_cast<std::size_t>(count)) {
    for (cudaEvent_t& event : events_) check(cudaEventCreate(&event), "cudaEventCreate");
  }
  Edges(const Edges&) = delete;
  Edges& operator=(const Edges&) = delete;
  ~Edges() {
    for (const cudaEvent_t event : events_) {
      if (event != nullptr) (void)cudaEventDestroy(event);
    }
  }
  void record(int edge, cudaStream_t stream) {
    check(cudaEventRecord(events_[static_cast<std::size_t>(edge)], stream), "cudaEventRecord");
  }
  /// Between an edge and the next.
  double seconds(int edge) const {
    float milliseconds = 0;
    const auto i = static_cast<std::size_t>(edge);
    check(cudaEventElapsedTime(&milliseconds, events_[i], events_[i + 1]), "cudaEventElapsedTime");
    return milliseconds * 1e-3;
  }

 private:
  std::vector<cudaEvent_t> events_;
};

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

class CudaTimer : public DeviceTimer {
 public:
  CudaTimer(LoraBackend& backend, Stream stream)
      : backend_(backend), stream_(static_cast<cudaStream_t>(stream.handle)) {
    check(cudaSetDevice(backend.device().index), "cudaSetDevice");
  }

  bool has_graphs() const override { return true; }

  std::unique_ptr<Recording> record(std::function<void()> enqueue) override {
    return std::make_unique<GraphRecording>(stream_, enqueue);
  }

  std::vector<std::vector<double>> replay(const std::vector<Recording*>& recordings,
                                          const Effort& effort) override {
    const int count = static_cast<int>(recordings.size());
    const auto run_once = [&](Edges& edges, int first) {
      for (int i = 0; i < count; ++i) {
        static_cast<GraphRecording*>(recordings[static_cast<std::size_t>(i)])->launch(stream_);
        edges.record(first + i + 1, stream_);
      }
    };
    // The first round warms up, the second tells how many rounds there is time for.
    Edges trial(count + 1);
    double round_seconds = 0;
    for (int round = 0; round < 2; ++round) {
      trial.record(0, stream_);
      run_once(trial, 0);
      check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    }
    for (int i = 0; i < count; ++i) round_seconds += trial.seconds(i);
    const double affordable = effort.seconds * count / std::max(round_seconds, 1e-9);
    const int rounds =
        static_cast<int>(std::clamp<double>(affordable, effort.least_replays, effort.most_replays));
    // Without a wait between replays the next one's launch is in the queue before it is due.
    Edges edges(rounds * count + 1);
    edges.record(0, stream_);
    for (int round = 0; round < rounds; ++round) run_once(edges, round * count);
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    std::vector<std::vector<double>> seconds(recordings.size());
    for (int edge = 0; edge < rounds * count; ++edge) {
      seconds[static_cast<std::size_t>(edge % count)].push_back(edges.seconds(edge));
    }
    return seconds;
  }

  Yardsticks yardsticks(const MachineLimits& limits) override {
    Yardsticks yardsticks;
    Buffer memory = must(Buffer::create(backend_, kCopyBytes));
    check(fill_noise(memory.data(), kCopyBytes / 2, 4, stream_), "fill_noise");
    yardsticks.copy_bytes_per_second = copy_rate(memory);
    yardsticks.floors = measure_floors(memory, limits.cold_bytes);
    yardsticks.floors->copy_bytes_per_second = yardsticks.copy_bytes_per_second;
    const MatrixRate rate = cuda_matrix_rate(stream_);
    if (rate.flops_per_second > 0) yardsticks.matrix_flops_per_second = rate.flops_per_second;
    yardsticks.matrix_source = rate.source;
    return yardsticks;
  }

  std::int64_t cache_bytes() const override {
    int bytes = 0;
    check(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, backend_.device().index),
          "cudaDeviceGetAttribute");
    return bytes;
  }

  std::vector<std::pair<std::string, std::string>> versions() const override {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, backend_.device().index), "cudaGetDeviceProperties");
    int driver = 0;
    int runtime = 0;
    check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
    check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
    std::vector<std::pair<std::string, std::string>> versions = {
        {"device", properties.name},
        {"compute capability", fmt::format("{}.{}", properties.major, properties.minor)},
        {"multiprocessors", std::to_string(properties.multiProcessorCount)},
        {"L2 cache", human_bytes(static_cast<std::uint64_t>(properties.l2CacheSize))},
        {"memory", human_bytes(properties.totalGlobalMem)},
        {"CUDA of the driver", version_text(driver)},
        {"CUDA runtime", version_text(runtime)},
        {"built with CUDA", version_text(CUDART_VERSION)}};
    std::ifstream file("/sys/module/nvidia/version");
    std::string text;
    if (file && std::getline(file, text)) versions.emplace_back("driver", text);
    return versions;
  }

 private:
  // The better of the runtime's copy and a plain kernel, over memory far larger than the cache.
  double copy_rate(const Buffer& memory) {
    const std::size_t half = kCopyBytes / 2;
    const auto copy = record([&] {
      check(cudaMemcpyAsync(memory.as<std::byte>() + half, memory.data(), half,
                            cudaMemcpyDeviceToDevice, stream_),
            "cudaMemcpyAsync");
    });
    const auto kernel = record([&] {
      check(elementwise_pass(memory.as<std::byte>() + half, memory.data(), half, 2, stream_),
            "elementwise_pass");
    });
    const auto seconds = replay({copy.get(), kernel.get()}, {});
    const double best = std::min(summarize(seconds[0], 1).median, summarize(seconds[1], 1).median);
    return static_cast<double>(kCopyBytes) / best;
  }

  // For each size the fastest of a few launch shapes, over copies that are cold in turn.
  FloorTable measure_floors(const Buffer& memory, std::int64_t cold_bytes) {
    FloorTable table;
    for (std::int64_t bytes = kMiB / 2; bytes <= 128 * kMiB; bytes *= 2) {
      const int layers = static_cast<int>(
          std::clamp<std::int64_t>((cold_bytes + bytes - 1) / bytes, 2, kCopyBytes / bytes));
      FloorTable::Entry entry{bytes, 0};
      for (int shape = 0; shape < kNumElementwiseShapes; ++shape) {
        const auto pass = record([&] {
          for (int i = 0; i < layers; ++i) {
            std::byte* const source = memory.as<std::byte>() + i * bytes;
            check(elementwise_pass(source + bytes / 2, source, static_cast<std::size_t>(bytes / 2),
                                   shape, stream_),
                  "elementwise_pass");
          }
        });
        const double seconds = time(*pass, layers, {}).median;
        if (shape == 0 || seconds < entry.seconds) entry.seconds = seconds;
      }
      table.entries.push_back(entry);
    }
    return table;
  }

  LoraBackend& backend_;
  cudaStream_t stream_;
};

}  // namespace

std::unique_ptr<DeviceTimer> make_cuda_timer(LoraBackend& backend, Stream stream) {
  return std::make_unique<CudaTimer>(backend, stream);
}

}  // namespace rankfold::tools
