// rankfold_bench_training [rounds]: forward and backward beside the same mathematics as Eigen
// products, one after the other in each round.
#include <oneapi/tbb/global_control.h>

#include <Eigen/Core>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
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

using Clock = std::chrono::steady_clock;
using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <class Call>
double seconds(Call&& call) {
  const auto start = Clock::now();
  call();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

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

  void eigen_forward() {
    const Matrix wide_x = view(x, kRows, kIn).template cast<float>();
    eigen_h_.noalias() = wide_x * wide_a().transpose();
    Matrix sum = view(y, kRows, kOut).template cast<float>();
    sum.noalias() += (kScaling * eigen_h_) * wide_b().transpose();
    view(y, kRows, kOut) = sum.template cast<typename Wide<T>::Element>();
  }
  void eigen_backward() {
    const Matrix wide_dy = view(dy, kRows, kOut).template cast<float>();
    const Matrix ds = kScaling * (wide_dy * wide_b());
    Matrix sum = view(dx, kRows, kIn).template cast<float>();
    sum.noalias() += ds * wide_a();
    view(dx, kRows, kIn) = sum.template cast<typename Wide<T>::Element>();
    const Matrix wide_x = view(x, kRows, kIn).template cast<float>();
    eigen_da_.noalias() = ds.transpose() * wide_x;
    eigen_db_.noalias() = kScaling * (wide_dy.transpose() * eigen_h_);
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
  Matrix wide_a() { return view(a, kRank, kIn).template cast<float>(); }
  Matrix wide_b() { return view(b, kOut, kRank).template cast<float>(); }

  LoraBackend& backend_;
  OwnedStream stream_;
  std::vector<T> x, y, dy, dx, a, b;
  std::vector<float> h, da, db;
  float* da_ = nullptr;
  float* db_ = nullptr;
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
void measure(LoraBackend& backend, const char* dtype, int threads, int rounds) {
  // Eigen's own products are of one thread here, unless the build has OpenMP.
  const tbb::global_control limit(tbb::global_control::max_allowed_parallelism,
                                  static_cast<std::size_t>(threads));
  Layer<T> layer(backend);
  layer.bind();
  std::vector<double> times[6];
  for (int i = 0; i < rounds; ++i) {
    layer.set_dropout(0.0f);
    times[0].push_back(seconds([&] { layer.forward(); }));
    times[1].push_back(seconds([&] { layer.eigen_forward(); }));
    times[2].push_back(seconds([&] { layer.backward(); }));
    times[3].push_back(seconds([&] { layer.eigen_backward(); }));
    if (i == 0) std::printf("# gradients differ by %.1e\n", layer.difference());
    layer.set_dropout(0.1f);
    times[4].push_back(seconds([&] { layer.forward(); }));
    times[5].push_back(seconds([&] { layer.backward(); }));
  }
  const double bytes = sizeof(T) * (kRows * kOut + kRows * kIn * 3.0);
  const char* const names[] = {"forward",         "forward, Eigen",       "backward",
                               "backward, Eigen", "forward, dropout 0.1", "backward, dropout 0.1"};
  for (int i = 0; i < 6; ++i) {
    const double time = median(times[i]);
    const double best = *std::min_element(times[i].begin(), times[i].end());
    const double products = (names[i][0] == 'f' ? 2.0 : 4.0) * kRows * kIn * kRank;
    std::printf("%-6s %d threads  %-24s %8.2f ms  best %8.2f ms  %6.1f GFLOP/s  %5.1f GB/s\n",
                dtype, threads, names[i], time * 1e3, best * 1e3, 2 * products / time * 1e-9,
                names[i][0] == 'f' ? 0.0 : bytes / time * 1e-9);
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
    throw_if_error(Registry::instance().add(reference::descriptor()));
    LoraBackend& backend = *Registry::instance().get("reference").value();
    for (const int threads : {1, 2}) {
      measure<float>(backend, "f32", threads, rounds);
      measure<BFloat16>(backend, "bf16", threads, rounds);
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rankfold_bench_training: %s\n", error.what());
    return 2;
  }
}
