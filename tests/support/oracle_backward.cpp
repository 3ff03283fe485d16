// ds = f dy B; dx += ds A; dA = ds^T x; dB = f dy^T h; dbias = f sum of dy, with f = scaling *
// token_weight as in the forward operations.
#include <algorithm>
#include <cmath>

#include "oracle_parts.hpp"

namespace rankfold::testing {

namespace {

class Backward {
 public:
  explicit Backward(const HostCall& call)
      : call_(call),
        shape_(call.shape),
        weights_(widen_entries(call)),
        x_(call.x.numbers()),
        h_(call.h.numbers()),
        dy_(call.dy.numbers()),
        rows_of_slot_(static_cast<std::size_t>(call.shape.num_slots), 0) {}

  OracleResult run() {
    const std::vector<RowRoute> routes = routes_of(call_);
    for (const RowRoute& route : routes) {
      if (route.slot >= 0) ++rows_of_slot_[static_cast<std::size_t>(route.slot)];
    }
    begin();
    for (std::size_t row = 0; row < routes.size(); ++row) {
      if (routes[row].slot < 0) continue;
      std::int64_t first_column = 0;
      for (std::int64_t slice = 0; slice < shape_.num_slices; ++slice) {
        const auto index =
            static_cast<std::size_t>(entry_index(shape_, routes[row].slot, 0, slice));
        if (weights_[index].touched) {
          add(index, static_cast<std::int64_t>(row), routes[row], slice, first_column);
        }
        first_column += shape_.out[slice];
      }
    }
    return std::move(result_);
  }

 private:
  // What a row without adapter, or a slot without rows, gets.
  void begin() {
    const std::int64_t rows = call_.addressing.num_tokens;
    const auto untouched = [](YMode mode) {
      return mode == YMode::accumulate ? Region::unchanged : Region::zero;
    };
    if (call_.dx.given()) {
      result_.dx = make_expected(rows, shape_.in, untouched(call_.options.y_mode));
    }
    if (call_.ds.given()) {
      result_.ds = make_expected(rows, std::int64_t{shape_.num_slices} * shape_.max_rank,
                                 Region::unspecified);
    }
    const std::size_t count = call_.gradients.size();
    result_.da.resize(count);
    result_.db.resize(count);
    result_.dbias.resize(count);
    for (std::size_t e = 0; e < count; ++e) {
      const HostGradient& gradient = call_.gradients[e];
      begin_gradient(e, gradient.da, result_.da[e]);
      begin_gradient(e, gradient.db, result_.db[e]);
      begin_gradient(e, gradient.dbias, result_.dbias[e]);
    }
  }

  void begin_gradient(std::size_t entry, const HostTensor& before, Expected& expected) const {
    if (!before.given()) return;
    const std::int64_t slices = shape_.num_slices;
    const auto slot = static_cast<std::int64_t>(entry) / slices;
    const bool adds = call_.gradient_mode == YMode::accumulate;
    const Region region = rows_of_slot_[static_cast<std::size_t>(slot)] > 0 ? Region::computed
                          : adds                                            ? Region::unchanged
                                                                            : Region::zero;
    expected = make_expected(before.rows(), before.columns(), region);
    if (!adds) return;
    for (std::size_t i = 0; i < expected.exact.size(); ++i) {
      expected.exact[i] = before.get(static_cast<std::int64_t>(i));
    }
  }

  // A term of an element; `sum`: the magnitudes of the products behind it; `root`: of how many
  // there are in the whole element.
  void put(Expected& expected, std::size_t at, double value, double sum, double root) {
    expected.exact[at] += value;
    expected.delta[at] += value;
    expected.magnitude[at] += sum / root;
    expected.region[at] = Region::computed;
    result_.max_gradient_sum = std::max(result_.max_gradient_sum, expected.magnitude[at] * root);
  }

  void add(std::size_t index, std::int64_t row, const RowRoute& route, std::int64_t slice,
           std::int64_t first_column) {
    const Weights& weights = weights_[index];
    const auto rank = static_cast<std::size_t>(weights.rank);
    const auto width = static_cast<std::size_t>(shape_.out[slice]);
    const double factor = call_.entries[index].scaling * route.weight;
    const double* const dy = dy_.data() + row * total_out(shape_) + first_column;
    const auto out = static_cast<double>(width);
    const auto rows = static_cast<double>(rows_of_slot_[static_cast<std::size_t>(route.slot)]);

    RankVector ds{std::vector<double>(rank, 0.0), std::vector<double>(rank, 0.0)};
    for (std::size_t j = 0; j < rank; ++j) {
      for (std::size_t o = 0; o < width; ++o) {
        ds.value[j] += factor * dy[o] * weights.b[o * rank + j];
        ds.sum[j] += std::fabs(factor * dy[o] * weights.b[o * rank + j]);
      }
    }
    if (call_.ds.given()) {
      const auto start =
          static_cast<std::size_t>(row * result_.ds.columns + slice * shape_.max_rank);
      for (std::size_t j = 0; j < rank; ++j) {
        put(result_.ds, start + j, ds.value[j], ds.sum[j], std::sqrt(out));
      }
    }
    XRow x;
    if (has_x(call_.op) && call_.x.given()) {
      x = dropped_row(call_, x_, row, route.x_row, slice);
    } else if (has_x(call_.op)) {  // the mask alone, for dx
      x = dropped_row(call_, std::vector<double>(static_cast<std::size_t>(shape_.in), 0.0), row, 0,
                      slice);
    }
    if (call_.dx.given()) add_dx(weights, ds, x, row, out);
    add_gradients(index, ds, x, row, slice, factor, dy, rows);
  }

  void add_dx(const Weights& weights, const RankVector& ds, const XRow& x, std::int64_t row,
              double out) {
    const auto in = static_cast<std::size_t>(shape_.in);
    const std::size_t first = static_cast<std::size_t>(row) * in;
    const bool adds = call_.options.y_mode == YMode::accumulate;
    const double root = std::sqrt(out * weights.rank);
    const double kept =
        call_.dropout.p == 0.0f ? 1.0 : static_cast<double>(1.0f / (1.0f - call_.dropout.p));
    for (std::size_t k = 0; k < in; ++k) {
      double value = 0, sum = 0;
      for (std::size_t j = 0; x.kept[k] && j < ds.value.size(); ++j) {
        value += kept * ds.value[j] * weights.a[j * in + k];
        sum += std::fabs(kept * ds.sum[j] * weights.a[j * in + k]);
      }
      const bool first_slice = result_.dx.region[first + k] != Region::computed;
      if (adds && first_slice) {
        result_.dx.exact[first + k] = call_.dx.get(static_cast<std::int64_t>(first + k));
      }
      put(result_.dx, first + k, value, sum, root);
    }
  }

  void add_gradients(std::size_t index, const RankVector& ds, const XRow& x, std::int64_t row,
                     std::int64_t slice, double factor, const double* dy, double rows) {
    if (call_.gradients.empty()) return;
    const Weights& weights = weights_[index];
    const auto rank = static_cast<std::size_t>(weights.rank);
    const auto width = static_cast<std::size_t>(shape_.out[slice]);
    const std::int64_t shared = call_.gradients[index].shared_da;
    const std::size_t target = shared < 0 ? index : static_cast<std::size_t>(shared);
    Expected& da = result_.da[target];
    const double root = std::sqrt(rows * static_cast<double>(width));
    for (std::size_t j = 0; !da.exact.empty() && j < rank; ++j) {
      const auto columns = static_cast<std::size_t>(da.columns);
      if (has_ids(call_.op)) {
        const double id = call_.ids.get(row);
        if (id < 0 || id >= static_cast<double>(weights.in_limit)) continue;
        put(da, j * columns + static_cast<std::size_t>(id), ds.value[j], ds.sum[j], root);
        continue;
      }
      for (std::size_t k = 0; k < columns; ++k) {
        if (!x.kept[k]) continue;
        put(da, j * columns + k, ds.value[j] * x.value[k], ds.sum[j] * std::fabs(x.value[k]), root);
      }
    }
    Expected& db = result_.db[index];
    if (!db.exact.empty()) {
      const RankVector h = call_.h.given()     ? given_row(call_, weights, h_, row, slice)
                           : has_ids(call_.op) ? gather_row(call_, weights, row)
                                               : shrink_row(weights, x);
      for (const double sum : h.sum) result_.max_h_sum = std::max(result_.max_h_sum, sum);
      const double db_root = std::sqrt(rows * terms_of_h(call_));
      for (std::size_t o = 0; o < width; ++o) {
        for (std::size_t j = 0; j < rank; ++j) {
          put(db, o * rank + j, factor * dy[o] * h.value[j], std::fabs(factor * dy[o]) * h.sum[j],
              db_root);
        }
      }
    }
    Expected& dbias = result_.dbias[index];
    for (std::size_t o = 0; !dbias.exact.empty() && o < width; ++o) {
      put(dbias, o, factor * dy[o], std::fabs(factor * dy[o]), std::sqrt(rows));
    }
  }

  const HostCall& call_;
  const TableShape& shape_;
  const std::vector<Weights> weights_;
  const std::vector<double> x_, h_, dy_;
  std::vector<std::int64_t> rows_of_slot_;
  OracleResult result_;
};

}  // namespace

OracleResult compute_backward(const HostCall& call) { return Backward(call).run(); }

}  // namespace rankfold::testing
