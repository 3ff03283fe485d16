#include <algorithm>
#include <chrono>
#include <cmath>

#include "eigen_training.hpp"
#include "groups.hpp"

namespace rankfold::bench {

namespace {

double seconds_of(const auto& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

template <class T>
struct Data {
  std::vector<T> x, y, dy, dx, a, b;
  std::vector<float> h, da, db;
};

template <class T>
std::vector<T> make(std::int64_t count, std::uint32_t seed) {
  if constexpr (std::is_same_v<T, float>) {
    return numbers_f32(count, seed);
  } else {
    return numbers(count, seed);
  }
}

template <class T>
Data<T> make_data() {
  Data<T> data;
  data.x = make<T>(kTrainRows * kTrainWidth, 1);
  data.y = make<T>(kTrainRows * kTrainWidth, 2);
  data.dy = make<T>(kTrainRows * kTrainWidth, 3);
  data.dx = make<T>(kTrainRows * kTrainWidth, 4);
  data.a = make<T>(kTrainRank * kTrainWidth, 5);
  data.b = make<T>(kTrainRank * kTrainWidth, 6);
  data.h.resize(kTrainRows * kTrainRank);
  data.da.resize(kTrainRank * kTrainWidth);
  data.db.resize(kTrainRank * kTrainWidth);
  return data;
}

template <class T>
class Step {
 public:
  Step(LoraBackend& backend, Data<T>& data)
      : backend_(backend), stream_(OwnedStream::create(backend).value()) {
    constexpr DType dtype = std::is_same_v<T, float> ? DType::f32 : DType::bf16;
    entry_.a = data.a.data();
    entry_.b = data.b.data();
    entry_.rank = kTrainRank;
    entry_.scaling = kTrainScaling;
    entry_.a_row_stride = entry_.in_limit = kTrainWidth;
    entry_.b_row_stride = kTrainRank;
    AdapterTableView table;
    table.shape.num_slots = 1;
    table.shape.max_rank = kTrainRank;
    table.shape.in = table.shape.out[0] = kTrainWidth;
    table.shape.a_dtype = table.shape.b_dtype = dtype;
    table.slot_stride = 1;
    table.entries = &entry_;
    LoraAddressing addressing;
    addressing.mode = AddressingMode::uniform;
    addressing.uniform_slot = 0;
    addressing.num_tokens = kTrainRows;
    da_ = data.da.data();
    db_ = data.db.data();
    forward_.table = backward_.table = table;
    forward_.addressing = backward_.addressing = addressing;
    forward_.x = const_matrix(data.x.data(), kTrainRows, kTrainWidth);
    forward_.y = matrix(data.y.data(), kTrainRows, kTrainWidth);
    forward_.h = matrix(data.h.data(), kTrainRows, kTrainRank);
    backward_.dy = const_matrix(data.dy.data(), kTrainRows, kTrainWidth);
    backward_.x = forward_.x;
    backward_.h = const_matrix(data.h.data(), kTrainRows, kTrainRank);
    backward_.dx = matrix(data.dx.data(), kTrainRows, kTrainWidth);
    backward_.grads.da = &da_;
    backward_.grads.db = &db_;
    forward_memory_ = memory(forward_);
    backward_memory_ = memory(backward_);
  }
  void forward() {
    throw_if_error(rankfold::forward(backend_, forward_, forward_memory_.workspace(), stream_));
  }
  void backward() {
    throw_if_error(rankfold::backward(backend_, backward_, backward_memory_.workspace(), stream_));
  }

 private:
  template <class Args>
  Buffer memory(const Args& args) {
    return Buffer::create(backend_, workspace_bytes(backend_, make_problem(args)).value()).value();
  }

  LoraBackend& backend_;
  OwnedStream stream_;
  AdapterEntry entry_;
  float* da_ = nullptr;
  float* db_ = nullptr;
  ForwardArgs forward_;
  BackwardArgs backward_;
  Buffer forward_memory_, backward_memory_;
};

double difference(const std::vector<float>& a, const std::vector<float>& b) {
  double square = 0;
  double norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    square += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    norm += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(square / norm);
}

template <class T>
bool training_of(const Machine& machine, const char* dtype) {
  Data<T> data = make_data<T>();
  Data<T> plain = data;
  Step<T> step(machine.backend, data);
  const EigenTraining<T> eigen{plain.x.data(),  plain.y.data(), plain.dy.data(), plain.dx.data(),
                               plain.a.data(),  plain.b.data(), plain.h.data(),  plain.da.data(),
                               plain.db.data(), machine.threads};
  step.forward();
  step.backward();
  eigen_forward(eigen);
  eigen_backward(eigen);
  // Both add in float32, in other orders.
  const double error = std::max(difference(data.da, plain.da), difference(data.db, plain.db));
  if (!(error < 1e-4)) {
    std::printf("%s WRONG: gradients differ from Eigen's by %g\n", dtype, error);
    return false;
  }
  struct Part {
    const char* name;
    std::function<void()> ours, theirs;
    double bytes;
  };
  const double matrix_bytes = static_cast<double>(kTrainRows * kTrainWidth) * sizeof(T);
  const Part parts[] = {
      {"forward", [&] { step.forward(); }, [&] { eigen_forward(eigen); }, 3 * matrix_bytes},
      {"backward", [&] { step.backward(); }, [&] { eigen_backward(eigen); }, 4 * matrix_bytes},
  };
  for (const Part& part : parts) {
    const InTurn times = time_in_turn(
        machine.rounds, 1.0, [&] { return 1.0 / seconds_of(part.theirs); },
        [&](std::int64_t) { part.ours(); });
    std::printf("%-10s %-10s %10.0f %10.0f %8.1f GB/s %12.0f %8.2f x %5.2f to %5.2f\n", dtype,
                part.name, times.median * 1e6, times.best * 1e6, part.bytes / times.median * 1e-9,
                1e6 / times.yardstick, times.share, times.share_p10, times.share_p90);
    std::fflush(stdout);
  }
  return true;
}

}  // namespace

bool training(const Machine& machine) {
  std::printf(
      "forward and backward (dx, dA, dB; h given), %lld rows, %lld to %lld, rank %lld, one "
      "adapter\n"
      "GB/s: x, y read and written; dy, x, dx read and written\n"
      "beside the same in Eigen products, rows shared out among %d threads, in turn with the "
      "point\n\n",
      static_cast<long long>(kTrainRows), static_cast<long long>(kTrainWidth),
      static_cast<long long>(kTrainWidth), static_cast<long long>(kTrainRank), machine.threads);
  std::printf("%-10s %-10s %10s %10s %13s %12s %10s %14s\n", "dtype", "operation", "median us",
              "best us", "rate", "Eigen us", "faster", "p10 to p90");
  const bool f32 = training_of<float>(machine, "f32");
  const bool bf16 = training_of<BFloat16>(machine, "bf16");
  return f32 && bf16;
}

}  // namespace rankfold::bench
