#include "expert_batch.hpp"

#include <algorithm>
#include <numeric>

namespace rankfold::reference_test {

ExpertBatch::ExpertBatch(const ExpertSpec& given) : spec(given) {
  std::mt19937 random(spec.seed);
  const auto integer = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  const auto number = [&](int bound) {
    return spec.integers ? static_cast<float>(integer(-bound, bound))
                         : std::uniform_real_distribution<float>(-1.0f, 1.0f)(random);
  };
  const auto fill = [&](Elements& elements, DType type, std::int64_t count, int bound) {
    elements.resize(type, count);
    for (std::int64_t i = 0; i < count; ++i) elements.set(i, number(bound));
  };
  const bool own = spec.x_rows == XRows::own;
  fill(x, spec.x, (own ? rows() : spec.tokens) * spec.in, 2);
  fill(y, spec.y, rows() * out_columns(), 3);
  for (std::int64_t t = 0; t < spec.tokens; ++t) {
    slots.push_back(integer(-1, spec.slots));
    token_weights.push_back(spec.integers ? (t % 2 == 0 ? 0.5f : 2.0f) : number(1));
  }
  for (std::int64_t r = 0; r < rows(); ++r) {
    ids.push_back(spec.expert_base + integer(-2, spec.experts + 1));
    row_weights.push_back(spec.integers ? (r % 3 == 0 ? 0.5f : 1.0f) : number(1));
  }
  const auto slices = static_cast<std::int32_t>(spec.out.size());
  for (std::int32_t slot = 0; slot < spec.slots; ++slot) {
    for (std::int32_t expert = 0; expert < spec.experts; ++expert) {
      for (std::int32_t slice = 0; slice < slices; ++slice) {
        const bool full = spec.same_ranks || (slot + expert + slice) % 3 == 0;
        const std::int32_t rank = full ? spec.max_rank : integer(0, spec.max_rank);
        const std::int64_t out = spec.out[static_cast<std::size_t>(slice)];
        fill(a.emplace_back(), spec.weights, rank * spec.in, 2);
        fill(b.emplace_back(), spec.weights, rank * out, 2);
        AdapterEntry entry;
        entry.rank = rank;
        entry.scaling =
            spec.integers ? 0.25f * static_cast<float>(1 << ((slot + expert) % 3)) : number(1);
        entry.a_row_stride = spec.in;
        entry.b_row_stride = rank;
        entry.in_limit = spec.in;
        entries.push_back(entry);
      }
    }
  }
  // Who shares has a copy of the same numbers here, so that a test can take the pointer or not.
  const auto of_slot = static_cast<std::size_t>(spec.experts * slices);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    std::size_t from = i;
    const auto slice = i % static_cast<std::size_t>(slices);
    if (spec.shared == SharedA::by_slices) from = i - slice;
    if (spec.shared == SharedA::by_experts) from = i / of_slot * of_slot + slice;
    if (spec.shared == SharedA::by_both) from = i / of_slot * of_slot;
    a[i] = a[from];
    if (entries[i].rank == 0) continue;
    entries[i].a = a[i].bytes.data();
    entries[i].b = b[i].bytes.data();
  }
  for (std::size_t i = 0; spec.shared != SharedA::none && i < entries.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (entries[i].rank > 0 && a[j].bytes == a[i].bytes) {
        entries[i].a = entries[j].a;
        break;
      }
    }
  }
  route();
}

void ExpertBatch::route() {
  if (spec.mode == ExpertMode::gather) return;
  offsets.assign(1, 0);
  row_tokens.clear();
  for (std::int32_t e = 0; e < spec.experts; ++e) {
    for (std::int64_t r = 0; r < rows(); ++r) {
      if (ids[static_cast<std::size_t>(r)] != e + spec.expert_base) continue;
      row_tokens.push_back(static_cast<std::int32_t>(r / spec.top_k));
    }
    offsets.push_back(static_cast<std::int32_t>(row_tokens.size()));
  }
  row_tokens.resize(static_cast<std::size_t>(rows()), 1 << 30);
}

std::int64_t ExpertBatch::out_columns() const {
  return std::accumulate(spec.out.begin(), spec.out.end(), std::int64_t{0});
}

AdapterTableView ExpertBatch::table() const {
  AdapterTableView view;
  view.shape.num_slots = spec.slots;
  view.shape.num_experts = spec.experts;
  view.shape.num_slices = static_cast<std::int32_t>(spec.out.size());
  view.shape.max_rank = spec.max_rank;
  view.shape.in = spec.in;
  std::copy(spec.out.begin(), spec.out.end(), view.shape.out);
  view.shape.a_dtype = spec.weights;
  view.shape.b_dtype = spec.weights;
  view.entries = entries.data();
  view.slot_stride = std::int64_t{view.shape.num_experts} * view.shape.num_slices;
  return view;
}

ExpertAddressing ExpertBatch::addressing() const {
  ExpertAddressing addressing;
  addressing.mode = spec.mode;
  addressing.x_rows = spec.x_rows;
  addressing.num_tokens = spec.tokens;
  addressing.num_rows = rows();
  if (spec.mode == ExpertMode::grouped) {
    addressing.expert_offsets = offsets.data();
    addressing.row_tokens = row_tokens.data();
  } else {
    addressing.expert_ids = ids.data();
    addressing.top_k = spec.top_k;
    addressing.expert_base = spec.expert_base;
  }
  addressing.token_slots = slots.data();
  if (spec.strengths) {
    addressing.row_weights = row_weights.data();
    addressing.token_weights = token_weights.data();
  }
  return addressing;
}

ApplyExpertsArgs ExpertBatch::apply(const Elements& into) const {
  ApplyExpertsArgs args;
  args.x = const_matrix(x.bytes.data(), spec.x, x.size() / spec.in, spec.in);
  args.table = table();
  args.addressing = addressing();
  args.y = matrix(const_cast<std::byte*>(into.bytes.data()), spec.y, rows(), out_columns());
  return args;
}

ShrinkExpertsArgs ExpertBatch::shrink(std::vector<float>& h) const {
  ShrinkExpertsArgs args;
  args.x = const_matrix(x.bytes.data(), spec.x, x.size() / spec.in, spec.in);
  args.table = table();
  args.addressing = addressing();
  args.h = matrix(h.data(), rows(), h_columns());
  return args;
}

ExpandExpertsArgs ExpertBatch::expand(const std::vector<float>& h, const Elements& into) const {
  ExpandExpertsArgs args;
  args.h = const_matrix(h.data(), rows(), h_columns());
  args.table = table();
  args.addressing = addressing();
  args.y = matrix(const_cast<std::byte*>(into.bytes.data()), spec.y, rows(), out_columns());
  return args;
}

std::int64_t ExpertBatch::token_of(std::int64_t row) const {
  return spec.mode == ExpertMode::gather ? row / spec.top_k
                                         : row_tokens[static_cast<std::size_t>(row)];
}

std::int64_t ExpertBatch::entry_of(std::int64_t row) const {
  std::int64_t expert = -1;
  if (spec.mode == ExpertMode::gather) {
    expert = std::int64_t{ids[static_cast<std::size_t>(row)]} - spec.expert_base;
  } else {
    // An offset under those before counts as the largest of them, one past the rows as their
    // number.
    std::int64_t end = 0;
    for (std::int32_t e = 0; e < spec.experts; ++e) {
      const auto at = static_cast<std::size_t>(e);
      const std::int64_t begin = std::clamp<std::int64_t>(offsets[at], end, rows());
      end = std::clamp<std::int64_t>(offsets[at + 1], begin, rows());
      if (row >= begin && row < end) expert = e;
    }
  }
  if (expert < 0 || expert >= spec.experts) return -1;
  const std::int64_t token = token_of(row);
  if (token < 0 || token >= spec.tokens) return -1;
  const std::int32_t slot = slots[static_cast<std::size_t>(token)];
  if (slot < 0 || slot >= spec.slots) return -1;
  return (std::int64_t{slot} * spec.experts + expert) * static_cast<std::int64_t>(spec.out.size());
}

std::vector<double> ExpertBatch::oracle_h() const {
  std::vector<double> h(static_cast<std::size_t>(rows() * h_columns()));
  for (std::int64_t r = 0; r < rows(); ++r) {
    const std::int64_t first = entry_of(r);
    if (first < 0) continue;
    const std::int64_t x_row = spec.x_rows == XRows::own ? r : token_of(r);
    for (std::size_t s = 0; s < spec.out.size(); ++s) {
      const auto e = static_cast<std::size_t>(first) + s;
      for (std::int64_t j = 0; j < entries[e].rank; ++j) {
        double sum = 0;
        for (std::int64_t k = 0; k < spec.in; ++k) {
          sum += x.get(x_row * spec.in + k) * a[e].get(j * spec.in + k);
        }
        h[static_cast<std::size_t>(r * h_columns() + j) +
          s * static_cast<std::size_t>(spec.max_rank)] = sum;
      }
    }
  }
  return h;
}

std::vector<double> ExpertBatch::base(YMode mode) const {
  std::vector<double> result(static_cast<std::size_t>(y.size()));
  for (std::size_t i = 0; i < result.size() && mode == YMode::accumulate; ++i) {
    result[i] = y.get(static_cast<std::int64_t>(i));
  }
  return result;
}

std::vector<double> ExpertBatch::oracle_y(YMode mode) const {
  const std::vector<double> h = oracle_h();
  std::vector<double> result = base(mode);
  for (std::int64_t r = 0; r < rows(); ++r) {
    const std::int64_t first = entry_of(r);
    if (first < 0) continue;
    std::int64_t column = r * out_columns();
    for (std::size_t s = 0; s < spec.out.size(); ++s) {
      const auto e = static_cast<std::size_t>(first) + s;
      double f = entries[e].scaling;
      if (spec.strengths) {
        f *= row_weights[static_cast<std::size_t>(r)];
        f *= token_weights[static_cast<std::size_t>(token_of(r))];
      }
      for (std::int64_t c = 0; c < spec.out[s]; ++c, ++column) {
        double sum = 0;
        for (std::int64_t j = 0; j < entries[e].rank; ++j) {
          sum += h[static_cast<std::size_t>(r * h_columns() + j) +
                   s * static_cast<std::size_t>(spec.max_rank)] *
                 b[e].get(c * entries[e].rank + j);
        }
        result[static_cast<std::size_t>(column)] += f * sum;
      }
    }
  }
  return result;
}

}  // namespace rankfold::reference_test
