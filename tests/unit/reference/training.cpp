#include "training.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace rankfold::reference_test {

namespace {

double element(const void* data, DType dtype, std::int64_t index) {
  switch (dtype) {
    case DType::f16:
      return to_float(static_cast<const Half*>(data)[index]);
    case DType::bf16:
      return to_float(static_cast<const BFloat16*>(data)[index]);
    default:
      return static_cast<const float*>(data)[index];
  }
}

std::vector<double> widened(const std::vector<float>& values) {
  return std::vector<double>(values.begin(), values.end());
}
std::vector<double> widened(const Elements& values) {
  std::vector<double> result;
  for (std::int64_t i = 0; i < values.size(); ++i) result.push_back(values.get(i));
  return result;
}
std::vector<std::vector<double>> widened(const std::vector<std::vector<float>>& values) {
  std::vector<std::vector<double>> result;
  for (const auto& one : values) result.push_back(widened(one));
  return result;
}

Elements elements(const std::vector<float>& values) {
  Elements result;
  result.resize(DType::f32, static_cast<std::int64_t>(values.size()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    result.set(static_cast<std::int64_t>(i), values[i]);
  }
  return result;
}

double ulp(DType dtype, double value) {
  const int digits = dtype == DType::f16 ? 11 : 8;
  const int least = dtype == DType::f16 ? -14 : -126;
  const int exponent = value == 0.0 ? least : std::max(std::ilogb(value), least);
  return std::ldexp(1.0, exponent - digits + 1);
}

}  // namespace

bool close_rows(const Elements& got, const std::vector<double>& exact,
                const std::vector<double>& base, std::int64_t columns) {
  if (got.dtype == DType::f32) return close(got, exact, base);
  const auto width = static_cast<std::size_t>(columns);
  std::size_t beyond = 0;
  for (std::size_t row = 0; row < exact.size(); row += width) {
    double square = 0;
    for (std::size_t i = row; i < row + width; ++i) {
      square += (exact[i] - base[i]) * (exact[i] - base[i]);
    }
    const double allowance = 1e-4 * std::sqrt(square / static_cast<double>(columns));
    for (std::size_t i = row; i < row + width; ++i) {
      const double error = std::abs(got.get(static_cast<std::int64_t>(i)) - exact[i]);
      const double unit = ulp(got.dtype, exact[i]);
      if (!(error <= unit + allowance)) return false;
      if (error > unit) ++beyond;
    }
  }
  return beyond <= std::max<std::size_t>(1, exact.size() / 1000);
}

void plain_philox(const std::uint32_t (&counter)[4], const std::uint32_t (&key)[2],
                  std::uint32_t (&result)[4]) {
  std::copy_n(counter, 4, result);
  for (std::uint32_t round = 0; round < 10; ++round) {
    const std::uint64_t left = std::uint64_t{0xD2511F53} * result[0];
    const std::uint64_t right = std::uint64_t{0xCD9E8D57} * result[2];
    const std::uint32_t next[4] = {
        static_cast<std::uint32_t>(right >> 32) ^ result[1] ^ (key[0] + round * 0x9E3779B9u),
        static_cast<std::uint32_t>(right),
        static_cast<std::uint32_t>(left >> 32) ^ result[3] ^ (key[1] + round * 0xBB67AE85u),
        static_cast<std::uint32_t>(left)};
    std::copy_n(next, 4, result);
  }
}

Training::Training(const TrainingSpec& given) : spec(given), batch(given.batch) {
  std::mt19937 random(given.batch.seed + 77);
  std::uniform_real_distribution<float> number(-1.0f, 1.0f);
  const BatchSpec& b = batch.spec;
  const auto fill = [&](std::vector<float>& values, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) values.push_back(number(random));
  };
  if (spec.share_a) {
    for (std::size_t e = 0; e < batch.entries.size(); ++e) {
      const std::size_t first = e / b.out.size() * b.out.size();
      AdapterEntry& entry = batch.entries[e];
      entry.rank = std::min(entry.rank, batch.entries[first].rank);
      entry.a = entry.rank > 0 ? batch.entries[first].a : nullptr;
    }
  }
  dy.resize(b.y, b.tokens * batch.out_columns());
  for (std::int64_t i = 0; i < dy.size(); ++i) dy.set(i, number(random));
  dx.resize(spec.dx, b.tokens * b.in);
  for (std::int64_t i = 0; i < dx.size(); ++i) dx.set(i, number(random));
  y = batch.y;
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  h.assign(static_cast<std::size_t>(b.tokens * h_columns()), kNaN);
  ds = h;
  if (spec.give_h) {
    for (std::int64_t t = 0; t < b.tokens; ++t) {
      const std::int32_t slot = batch.slots[static_cast<std::size_t>(t)];
      for (std::int64_t s = 0; slot >= 0 && slot < b.slots && s < slices(); ++s) {
        const AdapterEntry& entry = batch.entries[static_cast<std::size_t>(slot * slices() + s)];
        for (std::int64_t j = 0; j < entry.rank; ++j) {
          h[static_cast<std::size_t>(t * h_columns() + s * b.max_rank + j)] = number(random);
        }
      }
    }
  }
  for (std::size_t e = 0; e < batch.entries.size(); ++e) {
    const std::int64_t rank = batch.entries[e].rank;
    const std::int64_t out = b.out[e % b.out.size()];
    fill(da.emplace_back(), rank * b.in);
    fill(db.emplace_back(), rank * out);
    fill(dbias.emplace_back(), out);
  }
  for (std::size_t e = 0; e < batch.entries.size(); ++e) {
    const std::size_t first = e / b.out.size() * b.out.size();
    da_pointers.push_back(da[spec.share_da ? first : e].data());
    db_pointers.push_back(db[e].data());
    dbias_pointers.push_back(dbias[e].data());
    if (spec.share_da && batch.entries[first].rank == 0) da_pointers.back() = nullptr;
  }
}

ForwardArgs Training::forward() {
  const ApplyLinearArgs linear = batch.linear(y);
  ForwardArgs args;
  args.x = linear.x;
  args.table = linear.table;
  args.addressing = linear.addressing;
  args.y = linear.y;
  args.h = matrix(h.data(), batch.spec.tokens, h_columns());
  args.dropout = {.seed = spec.seed, .row_base = spec.row_base, .p = spec.p};
  return args;
}

ForwardEmbeddingArgs Training::forward_embedding() {
  const ApplyEmbeddingArgs embedding = batch.embedding(y);
  ForwardEmbeddingArgs args;
  args.ids = embedding.ids;
  args.table = embedding.table;
  args.addressing = embedding.addressing;
  args.y = embedding.y;
  args.h = matrix(h.data(), batch.spec.tokens, h_columns());
  return args;
}

BackwardArgs Training::backward() {
  const BatchSpec& b = batch.spec;
  BackwardArgs args;
  args.dy = const_matrix(dy.bytes.data(), b.y, b.tokens, batch.out_columns());
  const bool needs_x = (spec.outputs & kDa) != 0 || ((spec.outputs & kDb) != 0 && !spec.give_h);
  if (needs_x) args.x = const_matrix(batch.x.bytes.data(), b.x, b.tokens, b.in);
  if (spec.give_h) args.h = const_matrix(h.data(), b.tokens, h_columns());
  args.table = batch.table();
  args.addressing = batch.addressing();
  if ((spec.outputs & kDx) != 0) args.dx = matrix(dx.bytes.data(), spec.dx, b.tokens, b.in);
  if ((spec.outputs & kDa) != 0) args.grads.da = da_pointers.data();
  if ((spec.outputs & kDb) != 0) args.grads.db = db_pointers.data();
  if ((spec.outputs & kDbias) != 0) args.grads.dbias = dbias_pointers.data();
  if ((spec.outputs & kDs) != 0) args.ds = matrix(ds.data(), b.tokens, h_columns());
  args.grads.mode = spec.grads_mode;
  args.options.y_mode = spec.dx_mode;
  args.dropout = {.seed = spec.seed, .row_base = spec.row_base, .p = spec.p};
  return args;
}

BackwardEmbeddingArgs Training::backward_embedding() {
  const BackwardArgs linear = backward();
  BackwardEmbeddingArgs args;
  args.dy = linear.dy;
  args.ids = batch.embedding(y).ids;
  args.h = linear.h;
  args.table = linear.table;
  args.addressing = linear.addressing;
  args.grads = linear.grads;
  args.grads.dbias = nullptr;
  args.ds = linear.ds;
  return args;
}

Status Training::run_forward(StreamMode mode) {
  return spec.embedding ? run(forward_embedding(), mode) : run(forward(), mode);
}
Status Training::run_backward(StreamMode mode) {
  return spec.embedding ? run(backward_embedding(), mode) : run(backward(), mode);
}

double Training::mask(std::int64_t row, std::int64_t slice, std::int64_t column) const {
  if (spec.p == 0.0f) return 1.0;
  std::uint32_t words[4];
  plain_philox(
      {static_cast<std::uint32_t>(column / 4), static_cast<std::uint32_t>(row + spec.row_base),
       static_cast<std::uint32_t>(slice), 0},
      {static_cast<std::uint32_t>(spec.seed), static_cast<std::uint32_t>(spec.seed >> 32)}, words);
  const double threshold = std::floor(static_cast<double>(spec.p) * 4294967296.0);
  return words[column % 4] >= threshold ? static_cast<double>(1.0f / (1.0f - spec.p)) : 0.0;
}

double Training::input(std::int64_t row, std::int64_t slice, std::int64_t column) const {
  if (!spec.embedding) {
    const double kept = mask(row, slice, column);
    return kept == 0.0 ? 0.0 : kept * batch.x.get(row * batch.spec.in + column);
  }
  const std::int64_t id = batch.ids[static_cast<std::size_t>(row)];
  const std::int32_t slot = batch.slots[static_cast<std::size_t>(row)];
  const auto& entry = batch.entries[static_cast<std::size_t>(slot * slices() + slice)];
  return id == column && id < entry.in_limit ? 1.0 : 0.0;
}

std::vector<double> Training::exact_h() const {
  const BatchSpec& b = batch.spec;
  std::vector<double> result(static_cast<std::size_t>(b.tokens * h_columns()));
  for (std::int64_t t = 0; t < b.tokens; ++t) {
    const std::int32_t slot = batch.slots[static_cast<std::size_t>(t)];
    for (std::int64_t s = 0; slot >= 0 && slot < b.slots && s < slices(); ++s) {
      const AdapterEntry& entry = batch.entries[static_cast<std::size_t>(slot * slices() + s)];
      if (entry.rank == 0) continue;
      for (std::int64_t k = 0; k < b.in; ++k) {
        const double x = input(t, s, k);
        if (x == 0.0) continue;
        for (std::int64_t j = 0; j < entry.rank; ++j) {
          result[static_cast<std::size_t>(t * h_columns() + s * b.max_rank + j)] +=
              x * element(entry.a, b.a, j * entry.a_row_stride + k);
        }
      }
    }
  }
  return result;
}

std::vector<double> Training::exact_y() const {
  const BatchSpec& b = batch.spec;
  const std::vector<double> exact = exact_h();
  std::vector<double> result = widened(batch.y);
  for (std::int64_t t = 0; t < b.tokens; ++t) {
    const std::int32_t slot = batch.slots[static_cast<std::size_t>(t)];
    std::int64_t at = t * batch.out_columns();
    for (std::int64_t s = 0; slot >= 0 && slot < b.slots && s < slices(); ++s) {
      const AdapterEntry& entry = batch.entries[static_cast<std::size_t>(slot * slices() + s)];
      for (std::int64_t c = 0; c < b.out[static_cast<std::size_t>(s)]; ++c, ++at) {
        if (entry.rank == 0) continue;
        double sum = entry.bias != nullptr && !spec.embedding ? entry.bias[c] : 0.0;
        for (std::int64_t j = 0; j < entry.rank; ++j) {
          sum += exact[static_cast<std::size_t>(t * h_columns() + s * b.max_rank + j)] *
                 element(entry.b, b.b, c * entry.b_row_stride + j);
        }
        const double weight = b.token_weights ? batch.weights[static_cast<std::size_t>(t)] : 1.0;
        result[static_cast<std::size_t>(at)] += entry.scaling * weight * sum;
      }
    }
  }
  return result;
}

Results Training::before() const {
  return {widened(dx), widened(ds), widened(da), widened(db), widened(dbias)};
}

Results Training::exact() const {
  const BatchSpec& b = batch.spec;
  Results result = before();
  const std::vector<double> hidden = spec.give_h ? widened(h) : exact_h();
  if (spec.dx_mode == YMode::overwrite) std::fill(result.dx.begin(), result.dx.end(), 0.0);
  std::fill(result.ds.begin(), result.ds.end(), 0.0);
  if (spec.grads_mode == YMode::overwrite) {
    for (auto* all : {&result.da, &result.db, &result.dbias}) {
      for (auto& one : *all) std::fill(one.begin(), one.end(), 0.0);
    }
  }
  for (std::int64_t t = 0; t < b.tokens; ++t) {
    const std::int32_t slot = batch.slots[static_cast<std::size_t>(t)];
    std::int64_t column = t * batch.out_columns();
    for (std::int64_t s = 0; slot >= 0 && slot < b.slots && s < slices(); ++s) {
      const auto e = static_cast<std::size_t>(slot * slices() + s);
      const std::size_t owner = spec.share_da ? static_cast<std::size_t>(slot * slices()) : e;
      const AdapterEntry& entry = batch.entries[e];
      const std::int64_t out = b.out[static_cast<std::size_t>(s)];
      const double weight = b.token_weights ? batch.weights[static_cast<std::size_t>(t)] : 1.0;
      const double f = entry.scaling * weight;
      const auto hidden_at = static_cast<std::size_t>(t * h_columns() + s * b.max_rank);
      for (std::int64_t c = 0; entry.rank > 0 && c < out; ++c) {
        const double gradient = dy.get(column + c);
        result.dbias[e][static_cast<std::size_t>(c)] += f * gradient;
        for (std::int64_t j = 0; j < entry.rank; ++j) {
          const auto ju = static_cast<std::size_t>(j);
          result.ds[hidden_at + ju] +=
              f * gradient * element(entry.b, b.b, c * entry.b_row_stride + j);
          result.db[e][static_cast<std::size_t>(c * entry.rank + j)] +=
              f * gradient * hidden[hidden_at + ju];
        }
      }
      column += out;
      for (std::int64_t k = 0; entry.rank > 0 && k < b.in; ++k) {
        const double x = input(t, s, k);
        const double kept = spec.embedding ? 0.0 : mask(t, s, k);
        for (std::int64_t j = 0; j < entry.rank; ++j) {
          const double gradient = result.ds[hidden_at + static_cast<std::size_t>(j)];
          result.dx[static_cast<std::size_t>(t * b.in + k)] +=
              kept * gradient * element(entry.a, b.a, j * entry.a_row_stride + k);
          result.da[owner][static_cast<std::size_t>(j * b.in + k)] += gradient * x;
        }
      }
    }
  }
  return result;
}

void Training::check(const Results& exact, const Results& before) const {
  const auto zeros = [](const std::vector<double>& like) {
    return std::vector<double>(like.size(), 0.0);
  };
  const auto base = [&](const std::vector<double>& old, YMode mode) {
    return mode == YMode::overwrite ? zeros(old) : old;
  };
  if ((spec.outputs & kDx) != 0) {
    CHECK(close_rows(dx, exact.dx, base(before.dx, spec.dx_mode), batch.spec.in));
  } else {
    CHECK(widened(dx) == before.dx);
  }
  if ((spec.outputs & kDs) != 0) CHECK(close(elements(ds), exact.ds, zeros(exact.ds)));
  for (std::size_t e = 0; e < batch.entries.size(); ++e) {
    CAPTURE(e);
    const auto one = [&](unsigned output, const std::vector<float>& got,
                         const std::vector<double>& wanted, const std::vector<double>& old) {
      if ((spec.outputs & output) != 0) {
        CHECK(close(elements(got), wanted, base(old, spec.grads_mode)));
      } else {
        CHECK(widened(got) == old);
      }
    };
    if (!spec.share_da || e % batch.spec.out.size() == 0) {
      one(kDa, da[e], exact.da[e], before.da[e]);
    }
    one(kDb, db[e], exact.db[e], before.db[e]);
    if (!spec.embedding) one(kDbias, dbias[e], exact.dbias[e], before.dbias[e]);
  }
}

}  // namespace rankfold::reference_test
