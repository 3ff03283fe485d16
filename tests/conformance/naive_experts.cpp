// The operations of experts of the naive backend, and the places where a mutation makes them wrong.
#include <algorithm>
#include <memory>
#include <vector>

#include "naive_backend.hpp"
#include "naive_numbers.hpp"

namespace rankfold::conformance {

// One call with its arguments copied.
class NaiveExperts {
 public:
  NaiveExperts(const NaiveBackend& backend, const AdapterTableView& table,
               const ExpertAddressing& addressing, const CallOptions& options)
      : backend_(backend), table_(table), addressing_(addressing), options_(options) {}

  const ConstTensorView* x = nullptr;
  const ConstTensorView* h_in = nullptr;
  const TensorView* h_out = nullptr;
  const TensorView* y = nullptr;

  void run() const {
    const std::int64_t rows = addressing_.num_rows;
    const std::int64_t end = addressing_.row_end < 0 ? rows : addressing_.row_end;
    std::int64_t first = addressing_.row_begin, last = end;
    if (is(Mutation::window_from_row_0)) first = 0, last = end - addressing_.row_begin;
    if (is(Mutation::ignores_window)) first = 0;
    if (is(Mutation::zeroes_outside_window) && y != nullptr &&
        options_.y_mode == YMode::overwrite) {
      for (std::int64_t row = 0; row < rows; ++row) clear(row);
    }
    for (std::int64_t row = first; row < last; ++row) compute(row);
  }

 private:
  bool is(Mutation mutation) const { return backend_.is(mutation); }

  std::int64_t expert_of(std::int64_t row) const {
    const std::int64_t count = table_.shape.num_experts;
    std::int64_t expert = -1;
    if (addressing_.mode == ExpertMode::grouped) {
      for (std::int64_t e = 0; e < count; ++e) {
        if (row >= addressing_.expert_offsets[e] && row < addressing_.expert_offsets[e + 1]) {
          expert = e;
        }
      }
      if (expert < 0 && is(Mutation::writes_past_last_offset)) expert = count - 1;
    } else {
      const std::int64_t base = addressing_.expert_base;
      expert = addressing_.expert_ids[row];
      expert += is(Mutation::adds_expert_base)      ? base
                : is(Mutation::forgets_expert_base) ? 0
                                                    : -base;
      if (is(Mutation::narrow_expert_ids)) expert = static_cast<std::int32_t>(expert);
      if (is(Mutation::wraps_expert_ids)) expert = (expert % count + count) % count;
      if (is(Mutation::expert_once) && row % addressing_.top_k > 0 &&
          addressing_.expert_ids[row - 1] == addressing_.expert_ids[row]) {
        return -1;
      }
    }
    if (expert < 0 || expert >= count) return -1;
    return is(Mutation::next_expert) ? (expert + 1) % count : expert;
  }

  // Of a row past the last offset, which only a mutation asks about: any.
  std::int64_t token_of(std::int64_t row) const {
    if (addressing_.mode == ExpertMode::gather) return row / addressing_.top_k;
    if (addressing_.row_tokens == nullptr) return 0;
    const std::int64_t token = addressing_.row_tokens[row];
    return token >= addressing_.num_tokens ? 0 : token;
  }

  void clear(std::int64_t row) const {
    for (std::int64_t column = 0; column < y->sizes[1]; ++column) {
      write(y->dtype, y->data, row * y->strides[0] + column, 0.0f);
    }
  }

  void compute(std::int64_t row) const {
    const TableShape& shape = table_.shape;
    if (y != nullptr && options_.y_mode == YMode::overwrite) clear(row);
    const std::int64_t expert = expert_of(row);
    if (expert < 0) return;
    const std::int64_t token = token_of(row);
    const std::int64_t owner =
        is(Mutation::slot_of_row) ? row % std::max<std::int64_t>(addressing_.num_tokens, 1) : token;
    const std::int32_t slot =
        addressing_.token_slots == nullptr ? 0 : addressing_.token_slots[owner];
    if (slot < 0 || slot >= shape.num_slots) return;
    std::int64_t first_column = 0;
    for (std::int64_t slice = 0; slice < shape.num_slices; ++slice) {
      const std::int64_t index = is(Mutation::expert_major_entries)
                                     ? (expert * shape.num_slots + slot) * shape.num_slices + slice
                                     : entry_index(table_, slot, expert, slice);
      const AdapterEntry& entry = table_.entries[index];
      if (entry.rank > 0) slice_of_row(entry, row, token, slice, first_column);
      first_column += shape.out[slice];
    }
  }

  float row_weight(std::int64_t row) const {
    return addressing_.row_weights == nullptr ? 1.0f : addressing_.row_weights[row];
  }

  std::vector<float> rank_vector(const AdapterEntry& entry, std::int64_t row, std::int64_t token,
                                 std::int64_t slice) const {
    std::vector<float> h(static_cast<std::size_t>(entry.rank));
    const bool own = (addressing_.x_rows == XRows::own) != is(Mutation::x_rows_swapped);
    const std::int64_t rows_of_x = x == nullptr ? 1 : std::max<std::int64_t>(x->sizes[0], 1);
    const std::int64_t x_row = (own ? row : token) % rows_of_x;
    const bool backwards =
        is(Mutation::order_of_window) && (addressing_.row_begin > 0 || addressing_.row_end >= 0);
    for (std::int64_t j = 0; j < entry.rank; ++j) {
      float sum = 0;
      if (h_in != nullptr) {
        sum = static_cast<const float*>(
            h_in->data)[row * h_in->strides[0] + slice * table_.shape.max_rank + j];
      } else {
        for (std::int64_t i = 0; i < table_.shape.in; ++i) {
          const std::int64_t k = backwards ? table_.shape.in - 1 - i : i;
          sum += read(x->dtype, x->data, x_row * x->strides[0] + k) *
                 read(table_.shape.a_dtype, entry.a, j * entry.a_row_stride + k);
        }
        if (is(Mutation::row_weight_in_shrink)) sum *= row_weight(row);
      }
      h[static_cast<std::size_t>(j)] = sum;
    }
    return h;
  }

  void slice_of_row(const AdapterEntry& entry, std::int64_t row, std::int64_t token,
                    std::int64_t slice, std::int64_t first_column) const {
    const std::vector<float> h = rank_vector(entry, row, token, slice);
    if (h_out != nullptr) {
      std::copy(h.begin(), h.end(),
                static_cast<float*>(h_out->data) + row * h_out->strides[0] +
                    slice * table_.shape.max_rank);
      return;
    }
    float factor = entry.scaling;
    if (!is(Mutation::forgets_row_weight)) factor *= row_weight(row);
    if (is(Mutation::row_weight_twice)) factor *= row_weight(row);
    if (addressing_.token_weights != nullptr && !is(Mutation::forgets_token_weight)) {
      const std::int64_t at =
          is(Mutation::token_weight_of_row) ? row % addressing_.num_tokens : token;
      factor *= addressing_.token_weights[at];
    }
    for (std::int64_t o = 0; o < table_.shape.out[slice]; ++o) {
      float sum = 0;
      for (std::int64_t j = 0; j < entry.rank; ++j) {
        sum += h[static_cast<std::size_t>(j)] *
               read(table_.shape.b_dtype, entry.b, o * entry.b_row_stride + j);
      }
      float delta = factor * sum;
      if (is(Mutation::adds_bias_of_experts) && entry.bias != nullptr) {
        delta += factor * entry.bias[o];
      }
      const std::int64_t at = row * y->strides[0] + first_column + o;
      const bool adds = options_.y_mode == YMode::accumulate;
      write(y->dtype, y->data, at, adds ? read(y->dtype, y->data, at) + delta : delta);
    }
  }

  const NaiveBackend& backend_;
  const AdapterTableView& table_;
  const ExpertAddressing& addressing_;
  const CallOptions& options_;
};

template <class Args>
Status NaiveBackend::experts_later(const Args& args, Stream stream) {
  return enqueue(stream, [this, copy = args] {
    NaiveExperts run(*this, copy.table, copy.addressing, copy.options);
    if constexpr (requires { copy.x; }) run.x = &copy.x;
    if constexpr (requires { copy.y; }) run.y = &copy.y;
    if constexpr (std::is_same_v<Args, ExpandExpertsArgs>) {
      run.h_in = &copy.h;
    } else if constexpr (requires { copy.h; }) {
      run.h_out = &copy.h;
    }
    run.run();
  });
}

Status NaiveBackend::do_shrink_experts(const ShrinkExpertsArgs& args, const Workspace&,
                                       Stream stream) {
  return experts_later(args, stream);
}
Status NaiveBackend::do_expand_experts(const ExpandExpertsArgs& args, const Workspace&,
                                       Stream stream) {
  return experts_later(args, stream);
}
Status NaiveBackend::do_apply_experts(const ApplyExpertsArgs& args, const Workspace&,
                                      Stream stream) {
  return experts_later(args, stream);
}

}  // namespace rankfold::conformance
