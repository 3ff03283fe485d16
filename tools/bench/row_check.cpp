#include "row_check.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "command.hpp"

namespace rankfold::tools {
namespace {

constexpr int kSampledRows = 12;

double widen(std::uint16_t bits, DType dtype) {
  return dtype == DType::f16 ? to_float(Half{bits}) : to_float(BFloat16{bits});
}

// Distance of two neighbours of the format at |value|.
double unit_in_last_place(double value, DType dtype) {
  const int digits = dtype == DType::f16 ? 11 : 8;
  const int least = dtype == DType::f16 ? -14 : -126;
  const int exponent = value == 0 ? least : std::max(std::ilogb(value), least);
  return std::ldexp(1.0, exponent - digits + 1);
}

// First, last, the first without adapter, and rows spread over the batch.
std::set<std::int64_t> sample(const Workload& point) {
  std::set<std::int64_t> rows;
  for (int i = 0; i < kSampledRows; ++i) rows.insert((point.tokens - 1) * i / (kSampledRows - 1));
  const auto bare = std::find(point.token_slots.begin(), point.token_slots.end(), -1);
  if (bare != point.token_slots.end()) rows.insert(bare - point.token_slots.begin());
  return rows;
}

const std::uint16_t* elements(const ColdLayers& layers, std::int64_t at) {
  return reinterpret_cast<const std::uint16_t*>(layers.initial() + at);
}

// scale * B (A x) of one row, all slices.
std::vector<double> exact_delta(const Workload& point, DType dtype, float scale,
                                const ColdLayers& layers, std::int64_t row) {
  const LayerLayout& layout = layers.layout();
  const std::uint16_t* const x = elements(layers, layout.x) + row * point.in;
  std::vector<double> delta;
  for (const LayerLayout::Weights& weights : layout.weights) {
    if (weights.slot != point.token_slots[static_cast<std::size_t>(row)]) continue;
    std::vector<double> h(static_cast<std::size_t>(point.rank));
    const std::uint16_t* a = elements(layers, weights.a);
    for (double& sum : h) {
      for (std::int64_t k = 0; k < point.in; ++k) sum += widen(a[k], dtype) * widen(x[k], dtype);
      a += point.in;
    }
    const std::uint16_t* b = elements(layers, weights.b);
    for (std::int64_t n = 0; n < point.out[static_cast<std::size_t>(weights.slice)]; ++n) {
      double sum = 0;
      for (const double value : h) sum += widen(*b++, dtype) * value;
      delta.push_back(scale * sum);
    }
  }
  return delta;
}

}  // namespace

RowCheck check_rows(LoraBackend& backend, Stream stream, const Workload& point, DType dtype,
                    float scale, const ColdLayers& layers, int layer) {
  RowCheck check;
  if (point.tokens == 0) return check;
  std::int64_t columns = 0;
  for (const std::int64_t width : point.out) columns += width;
  std::int64_t num_elements = 0;
  std::int64_t num_beyond = 0;
  std::string first_beyond;
  std::vector<std::uint16_t> got(static_cast<std::size_t>(columns));
  for (const std::int64_t row : sample(point)) {
    ++check.num_rows;
    const std::uint16_t* const before = elements(layers, layers.layout().y) + row * columns;
    const std::byte* const y = layers.data(layer) + layers.layout().y + row * columns * 2;
    Status status = backend.copy(got.data(), y, got.size() * 2, CopyKind::device_to_host, stream);
    if (status.ok()) status = backend.synchronize(stream);
    if (!status.ok()) return {check.num_rows, describe(status)};
    const std::vector<double> delta = exact_delta(point, dtype, scale, layers, row);
    if (delta.empty()) {
      if (std::memcmp(got.data(), before, got.size() * 2) != 0) {
        check.failure =
            fmt::format("row {} of layer {} has no adapter and was changed", row, layer);
        return check;
      }
      continue;
    }
    double squares = 0;
    for (const double value : delta) squares += value * value;
    const double rms = std::sqrt(squares / static_cast<double>(columns));
    for (std::int64_t n = 0; n < columns; ++n) {
      const auto i = static_cast<std::size_t>(n);
      const double exact = widen(before[i], dtype) + delta[i];
      const double error = std::abs(widen(got[i], dtype) - exact);
      const double unit = unit_in_last_place(exact, dtype);
      ++num_elements;
      if (error <= unit) continue;
      ++num_beyond;
      const std::string text = fmt::format("row {}, column {} of layer {}: got {}, exact {}", row,
                                           n, layer, widen(got[i], dtype), exact);
      if (!(error <= unit + 1e-4 * rms)) {  // NaN, too
        check.failure = text;
        return check;
      }
      if (first_beyond.empty()) first_beyond = text;
    }
  }
  if (num_beyond > std::max<std::int64_t>(1, num_elements / 1000)) {
    check.failure = fmt::format("{} of {} elements are off by more than one unit; {}", num_beyond,
                                num_elements, first_beyond);
  }
  return check;
}

}  // namespace rankfold::tools
