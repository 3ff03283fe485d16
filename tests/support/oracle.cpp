#include "oracle.hpp"

#include <algorithm>
#include <cmath>

#include "oracle_dropout.hpp"
#include "oracle_parts.hpp"

namespace rankfold::testing {

Expected make_expected(std::int64_t rows, std::int64_t columns, Region region) {
  Expected expected;
  expected.rows = rows;
  expected.columns = columns;
  const auto count = static_cast<std::size_t>(rows * columns);
  expected.exact.assign(count, 0.0);
  expected.delta.assign(count, 0.0);
  expected.magnitude.assign(count, 0.0);
  expected.region.assign(count, region);
  return expected;
}

namespace {

Weights widen(const HostCall& call, const HostEntry& entry) {
  Weights weights;
  const HostTensor& a = a_of(call, entry);
  weights.rank = entry.rank;
  weights.touched = entry.rank > 0;
  if (!weights.touched) return weights;
  if (uses_a(call.op)) {
    weights.a = a.numbers();
    weights.in_limit = a.columns();
  }
  if (uses_b(call.op)) weights.b = entry.b.numbers();
  if (uses_bias(call.op) && entry.bias.given()) weights.bias = entry.bias.numbers();
  return weights;
}

}  // namespace

std::vector<Weights> widen_entries(const HostCall& call) {
  std::vector<Weights> weights;
  weights.reserve(call.entries.size());
  for (const HostEntry& entry : call.entries) weights.push_back(widen(call, entry));
  return weights;
}

XRow dropped_row(const HostCall& call, const std::vector<double>& x, std::int64_t row,
                 std::int64_t x_row, std::int64_t slice) {
  const auto in = static_cast<std::size_t>(call.shape.in);
  const double* const source = x.data() + static_cast<std::size_t>(x_row) * in;
  XRow result{std::vector<double>(source, source + in), std::vector<bool>(in, true)};
  if (call.dropout.p == 0.0f) return result;
  const std::vector<double> factors =
      dropout_factors(call.dropout, row, slice, static_cast<std::int64_t>(in));
  for (std::size_t k = 0; k < in; ++k) {
    result.kept[k] = factors[k] != 0;
    result.value[k] = result.kept[k] ? result.value[k] * factors[k] : 0.0;
  }
  return result;
}

RankVector shrink_row(const Weights& weights, const XRow& x) {
  const auto rank = static_cast<std::size_t>(weights.rank);
  const std::size_t in = x.value.size();
  RankVector result{std::vector<double>(rank, 0.0), std::vector<double>(rank, 0.0)};
  for (std::size_t j = 0; j < rank; ++j) {
    const double* const a_row = weights.a.data() + j * in;
    double value = 0, sum = 0;
    for (std::size_t k = 0; k < in; ++k) {
      if (!x.kept[k]) continue;
      const double product = x.value[k] * a_row[k];
      value += product;
      sum += std::fabs(product);
    }
    result.value[j] = value;
    result.sum[j] = sum;
  }
  return result;
}

RankVector gather_row(const HostCall& call, const Weights& weights, std::int64_t row) {
  const auto rank = static_cast<std::size_t>(weights.rank);
  RankVector result{std::vector<double>(rank, 0.0), std::vector<double>(rank, 0.0)};
  const double id = call.ids.get(row);
  if (id < 0 || id >= static_cast<double>(weights.in_limit)) return result;
  const auto column = static_cast<std::size_t>(id);
  for (std::size_t j = 0; j < rank; ++j) {
    result.value[j] = weights.a[j * static_cast<std::size_t>(weights.in_limit) + column];
    result.sum[j] = std::fabs(result.value[j]);
  }
  return result;
}

RankVector given_row(const HostCall& call, const Weights& weights, const std::vector<double>& h,
                     std::int64_t row, std::int64_t slice) {
  const auto rank = static_cast<std::size_t>(weights.rank);
  RankVector result{std::vector<double>(rank, 0.0), std::vector<double>(rank, 0.0)};
  const std::int64_t start = row * call.h.columns() + slice * call.shape.max_rank;
  for (std::size_t j = 0; j < rank; ++j) {
    result.value[j] = h[static_cast<std::size_t>(start) + j];
    result.sum[j] = std::fabs(result.value[j]);
  }
  return result;
}

double terms_of_h(const HostCall& call) {
  const bool given = reads_h(call.op) && call.h.given();
  return has_x(call.op) && !given ? static_cast<double>(call.shape.in) : 1.0;
}

namespace {

void write_h(const HostCall& call, const Weights& weights, const RankVector& vector,
             std::int64_t row, std::int64_t slice, OracleResult& result) {
  const double root = std::sqrt(terms_of_h(call));
  for (std::int32_t j = 0; j < weights.rank; ++j) {
    const auto at =
        static_cast<std::size_t>(row * result.h.columns + slice * call.shape.max_rank + j);
    const auto k = static_cast<std::size_t>(j);
    result.h.exact[at] = vector.value[k];
    result.h.delta[at] = vector.value[k];
    result.h.magnitude[at] = vector.sum[k] / root;
    result.h.region[at] = Region::computed;
  }
}

void write_y(const HostCall& call, const Weights& weights, const RankVector& vector, double factor,
             std::int64_t row, std::int64_t first_column, std::int64_t width,
             OracleResult& result) {
  const auto rank = static_cast<std::size_t>(weights.rank);
  const double root = std::sqrt(terms_of_h(call) * weights.rank);
  for (std::int64_t column = 0; column < width; ++column) {
    const double* const b_row = weights.b.data() + static_cast<std::size_t>(column) * rank;
    double value = 0, sum = 0, partial = 0;
    for (std::size_t j = 0; j < rank; ++j) {
      value += vector.value[j] * b_row[j];
      sum += vector.sum[j] * std::fabs(b_row[j]);
      partial += std::fabs(vector.value[j] * b_row[j]);
    }
    if (!weights.bias.empty()) value += weights.bias[static_cast<std::size_t>(column)];
    const auto at = static_cast<std::size_t>(row * result.y.columns + first_column + column);
    const double delta = factor * value;
    const bool adds = call.options.y_mode == YMode::accumulate;
    const double before = adds ? call.y.get(static_cast<std::int64_t>(at)) : 0.0;
    result.y.exact[at] = before + delta;
    result.y.delta[at] = delta;
    result.y.magnitude[at] = std::fabs(factor) * sum / root;
    result.y.region[at] = Region::computed;
    result.max_y_sum = std::max(result.max_y_sum, partial);
  }
}

// A window of experts is all that a call may touch, overwriting or not.
void set_row(Expected& expected, std::int64_t row, Region region) {
  const auto columns = static_cast<std::size_t>(expected.columns);
  const std::size_t first = static_cast<std::size_t>(row) * columns;
  for (std::size_t i = first; i < first + columns; ++i) expected.region[i] = region;
}

}  // namespace

OracleResult compute(const HostCall& call) {
  if (is_backward(call.op)) return compute_backward(call);
  const TableShape& shape = call.shape;
  const std::int64_t rows = num_rows(call);
  OracleResult result;
  if (makes_h(call.op)) {
    result.h =
        make_expected(rows, std::int64_t{shape.num_slices} * shape.max_rank, Region::unspecified);
  }
  if (makes_y(call.op)) {
    const bool adds = call.options.y_mode == YMode::accumulate;
    result.y = make_expected(rows, total_out(shape), adds ? Region::unchanged : Region::zero);
  }
  if (!makes_h(call.op) && !makes_y(call.op)) return result;

  const std::vector<Weights> weights = widen_entries(call);
  const std::vector<double> x = has_x(call.op) ? call.x.numbers() : std::vector<double>{};
  const std::vector<double> h = reads_h(call.op) ? call.h.numbers() : std::vector<double>{};
  const std::vector<RowRoute> routes = routes_of(call);

  for (std::int64_t row = 0; row < rows; ++row) {
    const RowRoute& route = routes[static_cast<std::size_t>(row)];
    if (!route.in_window) {
      if (makes_h(call.op)) set_row(result.h, row, Region::unchanged);
      if (makes_y(call.op)) set_row(result.y, row, Region::unchanged);
    }
    if (route.slot < 0) continue;
    std::int64_t first_column = 0;
    for (std::int64_t slice = 0; slice < shape.num_slices; ++slice) {
      const std::int64_t width = shape.out[slice];
      const auto index =
          static_cast<std::size_t>(entry_index(shape, route.slot, route.expert, slice));
      if (weights[index].touched) {
        const RankVector vector =
            reads_h(call.op) ? given_row(call, weights[index], h, row, slice)
            : has_ids(call.op)
                ? gather_row(call, weights[index], row)
                : shrink_row(weights[index], dropped_row(call, x, row, route.x_row, slice));
        for (const double sum : vector.sum) result.max_h_sum = std::max(result.max_h_sum, sum);
        if (makes_h(call.op)) write_h(call, weights[index], vector, row, slice, result);
        if (makes_y(call.op)) {
          const double factor = call.entries[index].scaling * route.weight;
          write_y(call, weights[index], vector, factor, row, first_column, width, result);
        }
      }
      first_column += width;
    }
  }
  return result;
}

}  // namespace rankfold::testing
