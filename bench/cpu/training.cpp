// rankfold_bench_training [rounds]: forward and backward beside the same mathematics as Eigen
// products of one thread, in turn in each round. `taskset -c 0` gives rankfold one thread, too.

#include <Eigen/Core>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <type_traits>
#include <vector>

#include "rankfold/rankfold.hpp"
#include "rankfold/reference.hpp"

using namespace rankfold;

namespace {

constexpr std::int64_t kRows = 2048;
constexpr std::int64_t kIn = 2048;
constexpr std::int64_t kOut = 2048;
constexpr std::int64_t kRank = 16;
constexpr float kScaling = 0.5f;

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

double now(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Seconds of calls: by the clock, and of all threads of the process, which a busy machine changes
// less.
struct Times {
  std::vector<double> wall, cpu;

  template <class Call>
  void measure(Call&& call) {
    const double wall_start = now(CLOCK_MONOTONIC);
    const double cpu_start = now(CLOCK_PROCESS_CPUTIME_ID);
    call();
    cpu.push_back(now(CLOCK_PROCESS_CPUTIME_ID) - cpu_start);
    wall.push_back(now(CLOCK_MONOTONIC) - wall_start);
  }
};

double median(std::vector<double> values) {
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

template <class T>
struct Wide {
  using Element = T;
};
template <>
struct Wide<BFloat16> {
  using Element = Eigen::bfloat16;
};

// A batch of one adapter. T: x, y, dy, dx, A and B.
template <class T>
class Layer {
 public:
  using Narrow =
      Eigen::Matrix<typename Wide<T>::Element, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using View = Eigen::Map<Narrow>;

  explicit Layer(LoraBackend& backend)
      : backend_(backend), stream_(OwnedStream::create(backend).value()) {
    std::uint32_t state = 1;
    const auto fill = [&](std::vector<T>& values, std::int64_t count, float size) {
      for (std::int64_t i = 0; i < count; ++i) {
        state = state * 1664525u + 1013904223u;
        values.push_back(from_float<T>(size * (static_cast<float>(state >> 8) * 0x1p-23f - 1.0f)));
      }
    };
    fill(x, kRows * kIn, 1.0f);
    fill(y, kRows * kOut, 1.0f);
    fill(dy, kRows * kOut, 1.0f);
    fill(dx, kRows * kIn, 1.0f);
    fill(a, kRank * kIn, 0.02f);
    fill(b, kOut * kRank, 0.02f);
    h.resize(kRows * kRank);
    da.resize(kRank * kIn);
    db.resize(kOut * kRank);
    entry_.a = a.data();
    entry_.b = b.data();
    entry_.rank = kRank;
    entry_.scaling = kScaling;
    entry_.a_row_stride = entry_.in_limit = kIn;
    entry_.b_row_stride = kRank;
    AdapterTableView table;
    table.shape.num_slots = 1;
    table.shape.max_rank = kRank;
    table.shape.in = kIn;
    table.shape.out[0] = kOut;
    table.shape.a_dtype = table.shape.b_dtype = DTypeOf<T>::value;
    table.entries = &entry_;
    table.slot_stride = 1;
    LoraAddressing addressing;
    addressing.mode = AddressingMode::uniform;
    addressing.uniform_slot = 0;
    addressing.num_tokens = kRows;
    forward_.x = backward_.x = const_matrix(x.data(), kRows, kIn);
    forward_.y = matrix(y.data(), kRows, kOut);
    forward_.h = matrix(h.data(), kRows, kRank);
    backward_.dy = const_matrix(dy.data(), kRows, kOut);
    backward_.h = const_matrix(h.data(), kRows, kRank);
    backward_.dx = matrix(dx.data(), kRows, kIn);
    backward_.grads.da = &da_;
    backward_.grads.db = &db_;
    forward_.table = backward_.table = table;
    forward_.addressing = backward_.addressing = addressing;
    const auto bytes = std::max(workspace_bytes(backend, make_problem(forward_)).value(),
                                workspace_bytes(backend, make_problem(backward_)).value());
    memory_ = Buffer::create(backend, bytes).value();
  }

  void set_dropout(float p) { forward_.dropout.p = backward_.dropout.p = p; }
  void forward() {
    throw_if_error(rankfold::forward(backend_, forward_, memory_.workspace(), stream_));
  }
  void backward() {
    throw_if_error(rankfold::backward(backend_, backward_, memory_.workspace(), stream_));
  }

  // Wide copies have their memory from the first call on; float32 is never copied.
  void eigen_forward() {
    eigen_h_.noalias() = wide(x, kRows, kIn, wide_x_) * wide_a().transpose();
    scaled_h_ = kScaling * eigen_h_;
    add_to(y, kOut, scaled_h_, wide_b().transpose());
  }
  void eigen_backward() {
    const Eigen::Map<const Matrix> gradient = wide(dy, kRows, kOut, wide_dy_);
    ds_.noalias() = gradient * wide_b();
    ds_ *= kScaling;
    add_to(dx, kIn, ds_, wide_a());
    eigen_da_.noalias() = ds_.transpose() * wide(x, kRows, kIn, wide_x_);
    eigen_db_.noalias() = gradient.transpose() * scaled_h_;
  }
  /// Largest relative difference of the gradients, after a forward and a backward of both.
  double difference() const {
    const Eigen::Map<const Matrix> own_da(da.data(), kRank, kIn), own_db(db.data(), kOut, kRank);
    return static_cast<double>(std::max((own_da - eigen_da_).norm() / eigen_da_.norm(),
                                        (own_db - eigen_db_).norm() / eigen_db_.norm()));
  }

 private:
  static View view(std::vector<T>& values, std::int64_t rows, std::int64_t columns) {
    return {reinterpret_cast<typename Wide<T>::Element*>(values.data()), rows, columns};
  }
  Eigen::Map<const Matrix> wide(std::vector<T>& values, std::int64_t rows, std::int64_t columns,
                                Matrix& copy) {
    if constexpr (std::is_same_v<T, float>) {
      return {values.data(), rows, columns};
    } else {
      copy = view(values, rows, columns).template cast<float>();
      return {copy.data(), rows, columns};
    }
  }
  template <class Left, class Right>
  void add_to(std::vector<T>& values, std::int64_t columns, const Left& left, const Right& right) {
    if constexpr (std::is_same_v<T, float>) {
      view(values, kRows, columns).noalias() += left * right;
    } else {
      sum_ = view(values, kRows, columns).template cast<float>();
      sum_.noalias() += left * right;
      view(values, kRows, columns) = sum_.template cast<typename Wide<T>::Element>();
    }
  }
  Eigen::Map<const Matrix> wide_a() { return wide(a, kRank, kIn, wide_a_); }
  Eigen::Map<const Matrix> wide_b() { return wide(b, kOut, kRank, wide_b_); }

  LoraBackend& backend_;
  OwnedStream stream_;
  std::vector<T> x, y, dy, dx, a, b;
  std::vector<float> h, da, db;
  float* da_ = nullptr;
  float* db_ = nullptr;
  Matrix wide_x_, wide_dy_, wide_a_, wide_b_, sum_, ds_, scaled_h_;
  Matrix eigen_h_, eigen_da_, eigen_db_;
  AdapterEntry entry_;
  ForwardArgs forward_;
  BackwardArgs backward_;
  Buffer memory_;

 public:
  void bind() {
    da_ = da.data();
    db_ = db.data();
  }
};

template <class T>
void measure(LoraBackend& backend, const char* dtype, int rounds) {
  Layer<T> layer(backend);
  layer.bind();
  Times times[6];
  for (int i = 0; i < rounds; ++i) {
    layer.set_dropout(0.0f);
    times[0].measure([&] { layer.forward(); });
    times[1].measure([&] { layer.eigen_forward(); });
    times[2].measure([&] { layer.backward(); });
    times[3].measure([&] { layer.eigen_backward(); });
    if (i == 0) std::printf("# gradients differ by %.1e\n", layer.difference());
    layer.set_dropout(0.1f);
    times[4].measure([&] { layer.forward(); });
    times[5].measure([&] { layer.backward(); });
  }
  const char* const names[] = {"forward",         "forward, Eigen",       "backward",
                               "backward, Eigen", "forward, dropout 0.1", "backward, dropout 0.1"};
  for (int i = 0; i < 6; ++i) {
    std::printf("%-5s %-22s median %7.2f ms  best %7.2f ms  cpu best %7.2f ms\n", dtype, names[i],
                median(times[i].wall) * 1e3,
                *std::min_element(times[i].wall.begin(), times[i].wall.end()) * 1e3,
                *std::min_element(times[i].cpu.begin(), times[i].cpu.end()) * 1e3);
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
    throw_if_error(Registry::instance().add(reference::descriptor()));
    LoraBackend& backend = *Registry::instance().get("reference").value();
    measure<float>(backend, "f32", rounds);
    measure<BFloat16>(backend, "bf16", rounds);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rankfold_bench_training: %s\n", error.what());
    return 2;
  }
}
