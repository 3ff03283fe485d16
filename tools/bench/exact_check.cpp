#include "exact_check.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <set>

#include "host_passes.hpp"
#include "judge.hpp"
#include "must.hpp"

namespace rankfold::tools {
namespace {

constexpr int kSampledRows = 12;
constexpr int kSampledRanks = 4;

// First, last, the first without adapter, and rows spread over the batch.
std::set<std::int64_t> sample(const std::vector<BatchRow>& rows) {
  const auto count = static_cast<std::int64_t>(rows.size());
  std::set<std::int64_t> sampled;
  if (count == 0) return sampled;
  for (int i = 0; i < kSampledRows; ++i) sampled.insert((count - 1) * i / (kSampledRows - 1));
  const auto bare =
      std::find_if(rows.begin(), rows.end(), [](const BatchRow& row) { return row.slot < 0; });
  if (bare != rows.end()) sampled.insert(bare - rows.begin());
  return sampled;
}

double dot(const double* a, const double* b, std::int64_t count) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

std::vector<double> read(Patterns& patterns, Fill fill, DType dtype, std::int64_t at,
                         std::int64_t first, std::int64_t count) {
  std::vector<double> values(static_cast<std::size_t>(count));
  patterns.read(fill, dtype, at, first, count, values.data());
  return values;
}

template <class T>
std::vector<T> download(LoraBackend& backend, Stream stream, const std::byte* from,
                        std::int64_t count) {
  std::vector<T> values(static_cast<std::size_t>(count));
  must(backend.copy(values.data(), from, values.size() * sizeof(T), CopyKind::device_to_host,
                    stream));
  must(backend.synchronize(stream));
  return values;
}

}  // namespace

ExactSamples::ExactSamples(Patterns& patterns, const Workload& point, const LayerLayout& layout)
    : point_(point), layout_(layout) {
  const std::vector<BatchRow> rows = batch_rows(point);
  for (const std::int64_t row : sample(rows)) {
    if (point.backward) {
      add_backward_row(patterns, row);
    } else {
      add_forward_row(patterns, row, rows[static_cast<std::size_t>(row)]);
    }
  }
  if (point.backward) add_gradients(patterns);
}

// scale * weight * B (A x), all slices.
void ExactSamples::add_forward_row(Patterns& patterns, std::int64_t row, const BatchRow& source) {
  Row expected;
  expected.row = row;
  const std::int64_t columns = point_.columns();
  expected.before = read(patterns, Fill::y, point_.x_dtype, layout_.y, row * columns, columns);
  const std::vector<double> x =
      read(patterns, Fill::x, point_.x_dtype, layout_.x, source.x_row * point_.in, point_.in);
  const double factor = static_cast<double>(point_.scale) * source.weight;
  for (const LayerLayout::Weights& weights : layout_.weights) {
    if (weights.slot != source.slot || weights.expert != source.expert) continue;
    const std::int64_t rank = weights.rank;
    const std::int64_t out = point_.out[static_cast<std::size_t>(weights.slice)];
    const std::vector<double> a =
        read(patterns, Fill::a, point_.weight_dtype, weights.a, 0, rank * point_.in);
    const std::vector<double> b =
        read(patterns, Fill::b, point_.weight_dtype, weights.b, 0, out * rank);
    std::vector<double> h;
    for (std::int64_t j = 0; j < rank; ++j)
      h.push_back(dot(&a[static_cast<std::size_t>(j * point_.in)], x.data(), point_.in));
    for (std::int64_t n = 0; n < out; ++n) {
      expected.delta.push_back(factor *
                               dot(&b[static_cast<std::size_t>(n * rank)], h.data(), rank));
    }
    if (layout_.h >= 0) expected.h.insert(expected.h.end(), h.begin(), h.end());
  }
  rows_.push_back(std::move(expected));
}

// dx of a row: (scale * dy B) A. A training point has one slot and one slice.
void ExactSamples::add_backward_row(Patterns& patterns, std::int64_t row) {
  Row expected;
  expected.row = row;
  const std::int64_t in = point_.in;
  const std::int64_t out = point_.columns();
  const std::int64_t rank = point_.rank;
  const LayerLayout::Weights& weights = layout_.weights.front();
  expected.before = read(patterns, Fill::dx, point_.x_dtype, layout_.dx, row * in, in);
  const std::vector<double> dy = read(patterns, Fill::y, point_.x_dtype, layout_.y, row * out, out);
  const std::vector<double> a =
      read(patterns, Fill::a, point_.weight_dtype, weights.a, 0, rank * in);
  const std::vector<double> b =
      read(patterns, Fill::b, point_.weight_dtype, weights.b, 0, out * rank);
  std::vector<double> ds(static_cast<std::size_t>(rank));
  for (std::int64_t n = 0; n < out; ++n) {
    for (std::int64_t j = 0; j < rank; ++j) {
      ds[static_cast<std::size_t>(j)] += point_.scale * dy[static_cast<std::size_t>(n)] *
                                         b[static_cast<std::size_t>(n * rank + j)];
    }
  }
  expected.delta.resize(static_cast<std::size_t>(in));
  for (std::int64_t j = 0; j < rank; ++j) {
    for (std::int64_t k = 0; k < in; ++k) {
      expected.delta[static_cast<std::size_t>(k)] +=
          ds[static_cast<std::size_t>(j)] * a[static_cast<std::size_t>(j * in + k)];
    }
  }
  rows_.push_back(std::move(expected));
}

// Whole rows of dA and whole columns of dB, for ranks spread over all: sums over every row of the
// batch.
void ExactSamples::add_gradients(Patterns& patterns) {
  const std::int64_t in = point_.in;
  const std::int64_t out = point_.columns();
  const std::int64_t rank = point_.rank;
  const LayerLayout::Weights& weights = layout_.weights.front();
  std::set<std::int32_t> ranks;
  for (int i = 0; i < kSampledRanks; ++i) ranks.insert((point_.rank - 1) * i / (kSampledRanks - 1));
  ranks_.assign(ranks.begin(), ranks.end());
  std::vector<std::vector<double>> a;
  std::vector<std::vector<double>> b;  // columns
  const std::vector<double> whole =
      read(patterns, Fill::b, point_.weight_dtype, weights.b, 0, out * rank);
  for (const std::int32_t j : ranks_) {
    a.push_back(read(patterns, Fill::a, point_.weight_dtype, weights.a, j * in, in));
    std::vector<double> column;
    for (std::int64_t n = 0; n < out; ++n)
      column.push_back(whole[static_cast<std::size_t>(n * rank + j)]);
    b.push_back(std::move(column));
  }
  da_.assign(ranks_.size(), std::vector<double>(static_cast<std::size_t>(in)));
  db_.assign(ranks_.size(), std::vector<double>(static_cast<std::size_t>(out)));
  std::mutex mutex;
  on_all_threads([&](int index, int count) {
    auto da = std::vector<std::vector<double>>(ranks_.size(),
                                               std::vector<double>(static_cast<std::size_t>(in)));
    auto db = std::vector<std::vector<double>>(ranks_.size(),
                                               std::vector<double>(static_cast<std::size_t>(out)));
    for (std::int64_t row = index; row < point_.rows(); row += count) {
      const auto x = read(patterns, Fill::x, point_.x_dtype, layout_.x, row * in, in);
      const auto dy = read(patterns, Fill::y, point_.x_dtype, layout_.y, row * out, out);
      for (std::size_t j = 0; j < ranks_.size(); ++j) {
        const double h = point_.scale * dot(a[j].data(), x.data(), in);
        const double ds = point_.scale * dot(b[j].data(), dy.data(), out);
        for (std::size_t k = 0; k < x.size(); ++k) da[j][k] += ds * x[k];
        for (std::size_t n = 0; n < dy.size(); ++n) db[j][n] += h * dy[n];
      }
    }
    const std::lock_guard<std::mutex> lock(mutex);
    for (std::size_t j = 0; j < ranks_.size(); ++j) {
      for (std::size_t k = 0; k < da[j].size(); ++k) da_[j][k] += da[j][k];
      for (std::size_t n = 0; n < db[j].size(); ++n) db_[j][n] += db[j][n];
    }
  });
}

std::string ExactSamples::check_gradients(LoraBackend& backend, Stream stream,
                                          const std::byte* layer) const {
  const std::int64_t rank = point_.rank;
  const auto da = download<float>(backend, stream, layer + layout_.da, rank * point_.in);
  const auto db = download<float>(backend, stream, layer + layout_.db, rank * point_.columns());
  NormJudge judge_da("da");
  NormJudge judge_db("db");
  for (std::size_t j = 0; j < ranks_.size(); ++j) {
    const auto r = static_cast<std::size_t>(ranks_[j]);
    for (std::size_t k = 0; k < da_[j].size(); ++k) {
      judge_da.add(da_[j][k], da[r * da_[j].size() + k]);
    }
    for (std::size_t n = 0; n < db_[j].size(); ++n) {
      judge_db.add(db_[j][n], db[n * static_cast<std::size_t>(rank) + r]);
    }
  }
  const std::string failure = judge_da.failure();
  return failure.empty() ? judge_db.failure() : failure;
}

ExactCheck ExactSamples::check(LoraBackend& backend, Stream stream, const ColdLayers& layers,
                               int layer) const {
  ExactCheck result;
  const auto fail = [&](const std::string& what) {
    result.failure = fmt::format("layer {}: {}", layer, what);
    return result;
  };
  const std::byte* const data = layers.data(layer);
  const std::int64_t columns = point_.backward ? point_.in : point_.columns();
  const std::int64_t at = point_.backward ? layout_.dx : layout_.y;
  RowJudge judge(point_.backward ? "dx" : "y", point_.x_dtype);
  NormJudge judge_h("h");
  for (const Row& row : rows_) {
    ++result.num_rows;
    const auto got = download<std::uint16_t>(
        backend, stream, data + at + row.row * columns * element_bytes(point_.x_dtype), columns);
    if (row.delta.empty()) {
      for (std::size_t i = 0; i < got.size(); ++i) {
        if (widen(got[i], point_.x_dtype) != row.before[i]) {
          return fail(fmt::format("row {} has no adapter and was changed", row.row));
        }
      }
      continue;
    }
    if (!judge.add(row.row, row.before, row.delta, got)) break;
    if (row.h.empty()) continue;
    const auto width = static_cast<std::int64_t>(row.h.size());
    const auto h = download<float>(backend, stream, data + layout_.h + row.row * width * 4, width);
    for (std::size_t j = 0; j < row.h.size(); ++j) judge_h.add(row.h[j], h[j]);
  }
  std::string failure = judge.failure();
  if (failure.empty()) failure = judge_h.failure();
  if (failure.empty() && point_.backward) failure = check_gradients(backend, stream, data);
  return failure.empty() ? result : fail(failure);
}

}  // namespace rankfold::tools
