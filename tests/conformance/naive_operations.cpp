// The operations of the naive backend, and the places where a mutation makes them wrong.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <type_traits>

#include "naive_backend.hpp"
#include "naive_numbers.hpp"

namespace rankfold::conformance {

// One call with its arguments copied (or not).
struct NaiveRun {
  NaiveBackend& backend;
  const AdapterTableView& table;
  const LoraAddressing& addressing;
  const CallOptions& options;
  const ConstTensorView* x = nullptr;
  const ConstTensorView* ids = nullptr;
  const ConstTensorView* h_in = nullptr;
  const TensorView* h_out = nullptr;
  const TensorView* y = nullptr;
  const Workspace& workspace;
  int call = 0;

  bool is(Mutation mutation) const { return backend.is(mutation); }

  std::vector<std::int32_t> slots_of_rows() const {
    std::vector<std::int32_t> slots(static_cast<std::size_t>(addressing.num_tokens), -1);
    if (addressing.mode == AddressingMode::uniform) {
      std::fill(slots.begin(), slots.end(), addressing.uniform_slot);
    } else if (addressing.mode == AddressingMode::tokens) {
      std::copy_n(addressing.token_slots, addressing.num_tokens, slots.begin());
    } else {
      const auto count = is(Mutation::reads_all_segments) ? addressing.max_segments
                                                          : std::int64_t{*addressing.num_segments};
      for (std::int64_t s = 0; s < count; ++s) {
        const std::int64_t end =
            std::min<std::int64_t>(addressing.segment_offsets[s + 1], addressing.num_tokens);
        for (std::int64_t i = std::max(0, addressing.segment_offsets[s]); i < end; ++i) {
          const std::int32_t row = addressing.token_order[i];
          if (row < 0 || row >= addressing.num_tokens) continue;
          slots[static_cast<std::size_t>(row)] = addressing.segment_slots[s];
        }
      }
    }
    if (is(Mutation::remembers_slots)) remember(slots);
    for (std::int32_t& slot : slots) {
      if (is(Mutation::clamps_slot) && table.shape.num_slots > 0) {
        slot = std::clamp(slot, 0, table.shape.num_slots - 1);
      }
      if (slot < 0 || slot >= table.shape.num_slots) {
        slot = -1;
      } else if (is(Mutation::next_slot)) {
        slot = (slot + 1) % table.shape.num_slots;
      }
    }
    return slots;
  }

  void remember(std::vector<std::int32_t>& slots) const {
    const void* const key = y != nullptr ? y->data : h_out->data;
    for (const auto& [address, old] : backend.remembered_) {
      if (address == key && old.size() == slots.size()) {
        slots = old;
        return;
      }
    }
    backend.remembered_.emplace_back(key, slots);
  }

  float sum(std::int64_t count, const auto& term) const {
    const bool backwards = (is(Mutation::order_of_batch) && addressing.num_tokens > 8) ||
                           (is(Mutation::order_of_call) && call % 2 == 1);
    float total = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      total += term(backwards ? count - 1 - i : i);
      if (is(Mutation::half_accumulation)) total = through(DType::f16, total);
    }
    return total;
  }

  float x_at(std::int64_t row, std::int64_t column) const {
    const std::int64_t stride =
        is(Mutation::dense_x) && x->strides[0] != 0 ? table.shape.in : x->strides[0];
    const float value = read(x->dtype, x->data, row * stride + column);
    return is(Mutation::tf32) ? to_tf32(value) : value;
  }

  float a_at(const AdapterEntry& entry, std::int64_t row, std::int64_t column) const {
    const std::int64_t stride = is(Mutation::dense_a) ? entry.in_limit : entry.a_row_stride;
    const float value = read(table.shape.a_dtype, entry.a, row * stride + column);
    return is(Mutation::tf32) ? to_tf32(value) : value;
  }

  float rank_value(const AdapterEntry& entry, std::int64_t row, std::int64_t j, float start) const {
    float value = 0;
    if (ids != nullptr) {
      std::int64_t id = ids->dtype == DType::i64 ? static_cast<const std::int64_t*>(ids->data)[row]
                                                 : static_cast<const std::int32_t*>(ids->data)[row];
      const std::int64_t limit = is(Mutation::ignores_in_limit) ? table.shape.in : entry.in_limit;
      if (is(Mutation::clamps_id)) id = std::clamp<std::int64_t>(id, 0, limit - 1);
      value = id >= 0 && id < limit ? a_at(entry, j, id) : 0.0f;
    } else {
      const std::int64_t in =
          is(Mutation::drops_tail_of_in) ? table.shape.in / 8 * 8 : table.shape.in;
      value = sum(in, [&](std::int64_t k) { return x_at(row, k) * a_at(entry, j, k); });
      if (is(Mutation::leaks_rows) && row > 0) value += 0.0f * x_at(row - 1, 0);
    }
    value += start;
    return is(Mutation::half_rank_vector) ? through(DType::bf16, value) : value;
  }

  void expand_slice(const AdapterEntry& entry, std::int64_t row, std::int64_t slice,
                    std::int64_t first_column, const std::vector<float>& h) const {
    const TableShape& shape = table.shape;
    std::int64_t rank = std::min<std::int64_t>(static_cast<std::int64_t>(h.size()), entry.rank);
    if (is(Mutation::drops_rank_32) && rank == 32) --rank;
    if (is(Mutation::reads_past_rank)) ++rank;
    const std::int64_t width =
        is(Mutation::drops_tail_of_out) ? shape.out[slice] / 8 * 8 : shape.out[slice];
    float factor = entry.scaling;
    if (addressing.token_weights != nullptr && !is(Mutation::forgets_token_weight)) {
      factor *= addressing.token_weights[row];
      if (is(Mutation::squared_token_weight)) factor *= addressing.token_weights[row];
    }
    for (std::int64_t o = 0; o < width; ++o) {
      const std::int64_t stride = is(Mutation::dense_b) ? entry.rank : entry.b_row_stride;
      const auto b_at = [&](std::int64_t j) {
        const float b = read(shape.b_dtype, entry.b, o * stride + j);
        return is(Mutation::folded_scaling) ? through(shape.b_dtype, b * entry.scaling) : b;
      };
      float value = sum(rank, [&](std::int64_t j) {
        return (static_cast<std::size_t>(j) < h.size() ? h[static_cast<std::size_t>(j)] : 1.0f) *
               b_at(j);
      });
      if (is(Mutation::leaks_adapters)) value += leak_of_other(slice);
      const float f = is(Mutation::folded_scaling) ? factor / entry.scaling : factor;
      float delta = f * value;
      if (entry.bias != nullptr && ids == nullptr && !is(Mutation::forgets_bias)) {
        delta =
            is(Mutation::unscaled_bias) ? delta + entry.bias[o] : delta + factor * entry.bias[o];
      }
      store(row, first_column + o, delta);
    }
  }

  float leak_of_other(std::int64_t slice) const {
    float leak = 0;
    for (std::int64_t slot = 0; slot < table.shape.num_slots; ++slot) {
      const AdapterEntry& other = table.entries[entry_index(table, slot, 0, slice)];
      if (other.rank > 0) leak += 0.0f * read(table.shape.b_dtype, other.b, 0);
    }
    return leak;
  }

  std::int64_t y_index(std::int64_t row, std::int64_t column) const {
    return row * (is(Mutation::dense_y) ? y->sizes[1] : y->strides[0]) + column;
  }

  void store(std::int64_t row, std::int64_t column, float delta) const {
    const std::int64_t at = y_index(row, column);
    const bool adds = is(Mutation::accumulates_always) ||
                      (options.y_mode == YMode::accumulate && !is(Mutation::overwrites_always));
    if (is(Mutation::double_rounding)) delta = through(y->dtype, delta);
    const float total = adds ? read(y->dtype, y->data, at) + delta : delta;
    float rounded = through(y->dtype, total);
    if (is(Mutation::truncates) || is(Mutation::ties_away)) {
      // The neighbour on the other side of the total, when rounding went the other way.
      const float step =
          y->dtype == DType::f32
              ? 0.0f
              : std::ldexp(1.0f, std::ilogb(total) - (y->dtype == DType::f16 ? 10 : 7));
      const bool larger = std::fabs(rounded) > std::fabs(total);
      const bool tie = std::fabs(rounded - total) * 2 == step && step > 0;
      if (is(Mutation::truncates) && larger) rounded -= std::copysign(step, total);
      if (is(Mutation::ties_away) && tie && !larger) rounded += std::copysign(step, total);
    }
    write(y->dtype, y->data, at, rounded);
  }

  void skip_row(std::int64_t row) const {
    if (y == nullptr) return;
    if (options.y_mode != YMode::overwrite && !is(Mutation::zeroes_skipped_rows)) return;
    if (is(Mutation::accumulates_always)) return;
    for (std::int64_t column = 0; column < y->sizes[1]; ++column) {
      write(y->dtype, y->data, y_index(row, column), 0.0f);
    }
  }

  std::vector<float> rank_vector(const AdapterEntry& entry, std::int64_t row, std::int64_t slice,
                                 std::int64_t rank) const {
    std::vector<float> h(static_cast<std::size_t>(rank));
    for (std::int64_t j = 0; j < rank; ++j) {
      const auto at = static_cast<std::size_t>(j);
      if (h_in == nullptr) {
        const bool trusts = is(Mutation::trusts_workspace) && workspace.bytes >= 16;
        h[at] = rank_value(entry, row, j, trusts ? static_cast<float*>(workspace.data)[j % 4] : 0);
        continue;
      }
      const std::int64_t start =
          slice * (is(Mutation::h_stride_of_rank) ? entry.rank : table.shape.max_rank);
      h[at] = static_cast<const float*>(h_in->data)[row * h_in->strides[0] + start + j];
      if (is(Mutation::half_rank_vector)) h[at] = through(DType::bf16, h[at]);
    }
    return h;
  }

  void row(std::int64_t at, std::int32_t slot) const {
    const TableShape& shape = table.shape;
    skip_row(at);
    if (slot < 0) return;
    std::int64_t first_column = 0;
    const std::int64_t first_rank = table.entries[entry_index(table, slot, 0, 0)].rank;
    for (std::int64_t slice = 0; slice < shape.num_slices; ++slice) {
      const AdapterEntry& entry = table.entries[entry_index(table, slot, 0, slice)];
      if (entry.rank > 0) {
        const std::int64_t rank = is(Mutation::rank_of_first_slice)
                                      ? std::min<std::int64_t>(first_rank, entry.rank)
                                      : entry.rank;
        const std::vector<float> h = rank_vector(entry, at, slice, rank);
        if (h_out != nullptr) {
          const std::int64_t start =
              slice * (is(Mutation::h_stride_of_rank) ? entry.rank : shape.max_rank);
          std::copy(h.begin(), h.end(),
                    static_cast<float*>(h_out->data) + at * h_out->strides[0] + start);
        } else {
          expand_slice(entry, at, slice, first_column, h);
        }
      }
      first_column += shape.out[slice];
    }
  }

  void operator()() const {
    const std::vector<std::int32_t> slots = slots_of_rows();
    for (std::size_t i = 0; i < slots.size(); ++i) row(static_cast<std::int64_t>(i), slots[i]);
    if (is(Mutation::writes_past_workspace)) {
      static_cast<std::byte*>(workspace.data)[workspace.bytes] = std::byte{0};
    }
    if (is(Mutation::writes_input) && x != nullptr) {
      std::memset(const_cast<void*>(x->data), 0x55, 1);
    }
    if (workspace.bytes >= 16) std::memset(workspace.data, 0x3f, 16);  // stale for the next call
  }
};

template <class Args>
Status NaiveBackend::run_later(const Args& args, const Workspace& workspace, Stream stream) {
  const auto copy = std::make_shared<std::pair<Args, Workspace>>(args, workspace);
  const Args* const source = &copy->first;
  const CallOptions* const caller_options =
      is(Mutation::argument_pointer) ? &args.options : &source->options;
  const int call = calls_++;
  return enqueue(stream, [this, copy, source, caller_options, call] {
    NaiveRun run{*this,           source->table, source->addressing,
                 *caller_options, nullptr,       nullptr,
                 nullptr,         nullptr,       nullptr,
                 copy->second,    call};
    if constexpr (requires { source->x; }) run.x = &source->x;
    if constexpr (requires { source->ids; }) run.ids = &source->ids;
    if constexpr (requires { source->y; }) run.y = &source->y;
    if constexpr (std::is_same_v<Args, ExpandArgs>) {
      run.h_in = &source->h;
    } else if constexpr (requires { source->h; }) {
      run.h_out = &source->h;
    }
    run();
  });
}

Status NaiveBackend::do_shrink(const ShrinkArgs& args, const Workspace& workspace, Stream stream) {
  return run_later(args, workspace, stream);
}
Status NaiveBackend::do_expand(const ExpandArgs& args, const Workspace& workspace, Stream stream) {
  return run_later(args, workspace, stream);
}
Status NaiveBackend::do_apply_linear(const ApplyLinearArgs& args, const Workspace& workspace,
                                     Stream stream) {
  if (is(Mutation::writes_before_refusing) && args.options.strategy != Strategy::automatic &&
      args.options.strategy != Strategy::general) {
    (void)run_later(args, workspace, stream);
    return Status(StatusCode::unsupported, "naive has general loops alone");
  }
  return run_later(args, workspace, stream);
}
Status NaiveBackend::do_gather_shrink(const GatherShrinkArgs& args, const Workspace& workspace,
                                      Stream stream) {
  return run_later(args, workspace, stream);
}
Status NaiveBackend::do_apply_embedding(const ApplyEmbeddingArgs& args, const Workspace& workspace,
                                        Stream stream) {
  return run_later(args, workspace, stream);
}

}  // namespace rankfold::conformance
