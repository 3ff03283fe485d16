// The training operations of the naive backend, and the places where a mutation makes them wrong.
#include <algorithm>
#include <cmath>
#include <vector>

#include "naive_backend.hpp"
#include "naive_numbers.hpp"
#include "oracle_dropout.hpp"

namespace rankfold::conformance {

// One call with its arguments copied. Members that an operation does not have stay null.
class NaiveTraining {
 public:
  NaiveTraining(const NaiveBackend& backend, const AdapterTableView& table,
                const LoraAddressing& addressing, const CallOptions& options, int call)
      : backend_(backend), table_(table), addressing_(addressing), options_(options), call_(call) {
    find_slots();
  }

  const ConstTensorView* x = nullptr;
  const ConstTensorView* ids = nullptr;
  const ConstTensorView* dy = nullptr;
  const ConstTensorView* h_in = nullptr;
  const TensorView* h_out = nullptr;
  const TensorView* y = nullptr;
  const TensorView* dx = nullptr;
  const TensorView* ds_out = nullptr;
  const Gradients* grads = nullptr;
  Dropout dropout;

  void run_forward() const {
    for (std::int64_t row = 0; row < addressing_.num_tokens; ++row) {
      if (options_.y_mode == YMode::overwrite) clear(*y, row);
      each_slice(row, [&](const AdapterEntry& entry, std::int64_t slice, std::int64_t column) {
        const std::vector<float> h = rank_vector(entry, row, slice);
        for (std::int64_t j = 0; j < entry.rank; ++j) {
          const float scale = is(Mutation::scaled_h) ? entry.scaling : 1.0f;
          hidden(*h_out, row, slice)[j] = h[at(j)] * scale;
        }
        const float factor = entry.scaling * weight_of(row);
        for (std::int64_t o = 0; o < table_.shape.out[slice]; ++o) {
          float sum = entry.bias != nullptr && ids == nullptr ? entry.bias[o] : 0.0f;
          for (std::int64_t j = 0; j < entry.rank; ++j) sum += h[at(j)] * b_at(entry, o, j);
          add(*y, row, column + o, factor * sum, options_.y_mode);
        }
      });
    }
  }

  void run_backward() const {
    prepare_gradients();
    const std::int64_t rows = addressing_.num_tokens;
    const bool backwards = is(Mutation::unordered_gradients) && call_ % 2 == 1;
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::int64_t row = backwards ? rows - 1 - i : i;
      std::vector<float> dx_row(dx == nullptr ? 0 : at(dx->sizes[1]), 0.0f);
      each_slice(row, [&](const AdapterEntry& entry, std::int64_t slice, std::int64_t column) {
        slice_of_row(entry, row, slice, column, dx_row);
      });
      if (dx == nullptr) continue;
      if (slots_[at(row)] >= 0 || options_.y_mode == YMode::overwrite) {
        for (std::int64_t k = 0; k < dx->sizes[1]; ++k) {
          add(*dx, row, k, dx_row[at(k)], options_.y_mode);
        }
      }
    }
    finish_gradients();
  }

 private:
  static std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }
  bool is(Mutation mutation) const { return backend_.is(mutation); }

  void find_slots() {
    slots_.assign(at(addressing_.num_tokens), -1);
    if (addressing_.mode == AddressingMode::uniform) {
      std::fill(slots_.begin(), slots_.end(), addressing_.uniform_slot);
    } else if (addressing_.mode == AddressingMode::tokens) {
      std::copy_n(addressing_.token_slots, addressing_.num_tokens, slots_.begin());
    } else if (addressing_.num_tokens > 0) {
      for (std::int32_t s = 0; s < *addressing_.num_segments; ++s) {
        for (std::int32_t i = addressing_.segment_offsets[s];
             i < addressing_.segment_offsets[s + 1]; ++i) {
          slots_[at(addressing_.token_order[i])] = addressing_.segment_slots[s];
        }
      }
    }
    for (std::int32_t& slot : slots_) {
      if (slot < 0 || slot >= table_.shape.num_slots) slot = -1;
    }
  }

  template <class Work>
  void each_slice(std::int64_t row, Work work) const {
    const std::int32_t slot = slots_[at(row)];
    if (slot < 0) return;
    std::int64_t column = 0;
    for (std::int64_t slice = 0; slice < table_.shape.num_slices; ++slice) {
      const AdapterEntry& entry = table_.entries[entry_index(table_, slot, 0, slice)];
      if (entry.rank > 0) work(entry, slice, column);
      column += table_.shape.out[slice];
    }
  }

  float b_at(const AdapterEntry& entry, std::int64_t o, std::int64_t j) const {
    return read(table_.shape.b_dtype, entry.b, o * entry.b_row_stride + j);
  }
  float a_at(const AdapterEntry& entry, std::int64_t j, std::int64_t k) const {
    return read(table_.shape.a_dtype, entry.a, j * entry.a_row_stride + k);
  }
  float weight_of(std::int64_t row) const {
    return addressing_.token_weights == nullptr ? 1.0f : addressing_.token_weights[row];
  }
  float* hidden(const TensorView& h, std::int64_t row, std::int64_t slice) const {
    return static_cast<float*>(h.data) + row * h.strides[0] + slice * table_.shape.max_rank;
  }
  static void clear(const TensorView& target, std::int64_t row) {
    for (std::int64_t k = 0; k < target.sizes[1]; ++k) {
      write(target.dtype, target.data, row * target.strides[0] + k, 0.0f);
    }
  }
  static void add(const TensorView& target, std::int64_t row, std::int64_t column, float delta,
                  YMode mode) {
    const std::int64_t index = row * target.strides[0] + column;
    const float before = mode == YMode::accumulate ? read(target.dtype, target.data, index) : 0.0f;
    write(target.dtype, target.data, index, before + delta);
  }

  // By what each element of a row of x is multiplied: 0 or 1 / (1 - p).
  std::vector<double> mask(std::int64_t row, std::int64_t slice) const {
    Dropout drawn = dropout;
    std::int64_t number = row;
    if (is(Mutation::mask_without_row_base)) drawn.row_base = 0;
    if (is(Mutation::mask_of_first_slice)) slice = 0;
    if (is(Mutation::mask_of_low_seed)) drawn.seed &= 0xffffffffu;
    if (is(Mutation::mask_of_place)) {
      number = std::count(slots_.begin(), slots_.begin() + row, slots_[at(row)]);
    }
    const std::int64_t in = table_.shape.in;
    const std::int64_t shift = is(Mutation::mask_of_next_column) ? 1 : 0;
    std::vector<double> factors = testing::dropout_factors(drawn, number, slice, in + shift);
    factors.erase(factors.begin(), factors.begin() + shift);
    if (is(Mutation::unscaled_mask)) {
      for (double& factor : factors) factor = factor > 0 ? 1 : 0;
    }
    return factors;
  }

  float x_at(std::int64_t row, std::int64_t k) const {
    return read(x->dtype, x->data, row * x->strides[0] + k);
  }
  std::int64_t id_of(std::int64_t row) const {
    return ids->dtype == DType::i64 ? static_cast<const std::int64_t*>(ids->data)[row]
                                    : static_cast<const std::int32_t*>(ids->data)[row];
  }

  std::vector<float> rank_vector(const AdapterEntry& entry, std::int64_t row,
                                 std::int64_t slice) const {
    std::vector<float> h(at(entry.rank), 0.0f);
    if (ids != nullptr) {
      const std::int64_t id = id_of(row);
      if (id < 0 || id >= entry.in_limit) return h;
      for (std::int64_t j = 0; j < entry.rank; ++j) h[at(j)] = a_at(entry, j, id);
      return h;
    }
    std::vector<double> factors = mask(row, slice);
    if (is(Mutation::undropped_forward)) std::fill(factors.begin(), factors.end(), 1.0);
    for (std::int64_t j = 0; j < entry.rank; ++j) {
      for (std::int64_t k = 0; k < table_.shape.in; ++k) {
        if (factors[at(k)] == 0) continue;
        h[at(j)] += static_cast<float>(factors[at(k)]) * x_at(row, k) * a_at(entry, j, k);
      }
    }
    return h;
  }

  float* gradient(float* const* array, std::int64_t slot, std::int64_t slice) const {
    return array == nullptr ? nullptr : array[slot * table_.shape.num_slices + slice];
  }

  bool has_rows(std::int64_t slot) const {
    return std::find(slots_.begin(), slots_.end(), slot) != slots_.end();
  }

  template <class Work>
  void each_gradient(Work work) const {
    const TableShape& shape = table_.shape;
    for (std::int64_t slot = 0; slot < shape.num_slots; ++slot) {
      for (std::int64_t slice = 0; slice < shape.num_slices; ++slice) {
        const AdapterEntry& entry = table_.entries[entry_index(table_, slot, 0, slice)];
        if (entry.rank == 0) continue;
        work(slot, slice, gradient(grads->da, slot, slice), entry.rank * shape.in);
        work(slot, slice, gradient(grads->db, slot, slice), shape.out[slice] * entry.rank);
        work(slot, slice, gradient(grads->dbias, slot, slice), shape.out[slice]);
      }
    }
  }

  void prepare_gradients() const {
    const bool overwrites = grads->mode == YMode::overwrite;
    each_gradient([&](std::int64_t slot, std::int64_t, float* target, std::int64_t count) {
      if (target == nullptr) return;
      const bool idle = !has_rows(slot);
      bool clears = overwrites;
      if (is(Mutation::gradients_always_added) && !idle) clears = false;
      if (is(Mutation::gradients_always_overwritten) && !idle) clears = true;
      if (is(Mutation::idle_gradients_left) && idle) clears = false;
      if (is(Mutation::idle_gradients_zeroed) && idle) clears = true;
      if (clears) std::fill_n(target, count, 0.0f);
    });
  }

  // Mutations of finished gradients.
  void finish_gradients() const {
    const TableShape& shape = table_.shape;
    for (std::int64_t slot = 0; slot < shape.num_slots; ++slot) {
      for (std::int64_t slice = 0; slice < shape.num_slices; ++slice) {
        const AdapterEntry& entry = table_.entries[entry_index(table_, slot, 0, slice)];
        if (entry.rank == 0 || !has_rows(slot)) continue;
        spoil(gradient(grads->da, slot, slice), entry.rank, shape.in, entry.scaling,
              Mutation::zero_da, Mutation::transposed_da, Mutation::doubly_scaled_da);
        spoil(gradient(grads->db, slot, slice), shape.out[slice], entry.rank, entry.scaling,
              Mutation::zero_db, Mutation::transposed_db, Mutation::doubly_scaled_db);
        float* const da = gradient(grads->da, slot, slice);
        if (is(Mutation::shared_a_twice) && da != nullptr && slice > 0 &&
            gradient(grads->da, slot, slice - 1) == da) {
          for (std::int64_t i = 0; i < entry.rank * shape.in; ++i) da[i] *= 2;
        }
      }
    }
  }
  void spoil(float* target, std::int64_t rows, std::int64_t columns, float scaling, Mutation zero,
             Mutation transposed, Mutation scaled) const {
    if (target == nullptr) return;
    const std::vector<float> copy(target, target + rows * columns);
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      if (is(zero)) target[i] = 0;
      if (is(scaled)) target[i] *= scaling;
      if (is(transposed)) target[i] = copy[at(i % rows * columns + i / rows)];
    }
  }

  std::vector<float> ds_of_row(const AdapterEntry& entry, std::int64_t row, std::int64_t slice,
                               std::int64_t column) const {
    float factor = is(Mutation::unscaled_ds) ? 1.0f : entry.scaling;
    if (!is(Mutation::forgets_token_weight_in_backward)) factor *= weight_of(row);
    std::vector<float> ds(at(entry.rank), 0.0f);
    for (std::int64_t j = 0; j < entry.rank; ++j) {
      for (std::int64_t o = 0; o < table_.shape.out[slice]; ++o) {
        ds[at(j)] += dy_at(row, column + o) * b_at(entry, o, j);
      }
      ds[at(j)] *= factor;
      if (is(Mutation::zero_ds)) ds[at(j)] = 0;
    }
    return ds;
  }
  float dy_at(std::int64_t row, std::int64_t column) const {
    const float value = read(dy->dtype, dy->data, row * dy->strides[0] + column);
    return is(Mutation::tf32_gradients) ? to_tf32(value) : value;
  }

  void slice_of_row(const AdapterEntry& entry, std::int64_t row, std::int64_t slice,
                    std::int64_t column, std::vector<float>& dx_row) const {
    const std::vector<float> ds = ds_of_row(entry, row, slice, column);
    if (ds_out != nullptr) std::copy(ds.begin(), ds.end(), hidden(*ds_out, row, slice));
    const std::vector<double> factors = ids == nullptr ? mask(row, slice) : std::vector<double>{};
    if (dx != nullptr && !(is(Mutation::dx_of_first_slice) && slice > 0)) {
      add_dx(entry, ds, factors, dx_row);
    }
    add_da(entry, row, slice, ds, factors);
    add_db(entry, row, slice, column);
  }

  void add_dx(const AdapterEntry& entry, const std::vector<float>& ds,
              const std::vector<double>& factors, std::vector<float>& dx_row) const {
    for (std::int64_t k = 0; k < table_.shape.in; ++k) {
      if (factors[at(k)] == 0 && !is(Mutation::dx_without_dropout)) continue;
      float sum = 0;
      for (std::int64_t j = 0; j < entry.rank; ++j) sum += ds[at(j)] * a_at(entry, j, k);
      if (!is(Mutation::dx_without_dropout)) sum *= static_cast<float>(factors[at(k)]);
      dx_row[at(k)] += sum;
      if (is(Mutation::dx_rounded_by_slice)) dx_row[at(k)] = through(dx->dtype, dx_row[at(k)]);
    }
  }

  void add_da(const AdapterEntry& entry, std::int64_t row, std::int64_t slice,
              const std::vector<float>& ds, const std::vector<double>& factors) const {
    std::int64_t slot = slots_[at(row)];
    if (is(Mutation::da_of_next_slot)) slot = (slot + 1) % table_.shape.num_slots;
    float* const da = gradient(grads->da, slot, slice);
    if (da == nullptr) return;
    const std::int64_t last = table_.shape.num_slices - 1;
    if (is(Mutation::shared_a_last) && slice < last && gradient(grads->da, slot, last) == da) {
      return;
    }
    if (ids != nullptr) {
      std::int64_t id = is(Mutation::da_by_position) ? row : id_of(row);
      if (is(Mutation::da_of_clamped_id)) id = std::clamp<std::int64_t>(id, 0, entry.in_limit - 1);
      if (id < 0 || id >= entry.in_limit) return;
      for (std::int64_t j = 0; j < entry.rank; ++j) da[j * table_.shape.in + id] += ds[at(j)];
      return;
    }
    const bool undropped = is(Mutation::da_of_undropped_x);
    for (std::int64_t j = 0; j < entry.rank; ++j) {
      for (std::int64_t k = 0; k < table_.shape.in; ++k) {
        const double factor = undropped ? 1.0 : factors[at(k)];
        if (factor == 0) continue;
        float& sum = da[j * table_.shape.in + k];
        sum += ds[at(j)] * (static_cast<float>(factor) * x_at(row, k));
        if (is(Mutation::leaks_gradients) && row > 0) sum += 0.0f * x_at(row - 1, k);
      }
    }
  }

  void add_db(const AdapterEntry& entry, std::int64_t row, std::int64_t slice,
              std::int64_t column) const {
    const std::int32_t slot = slots_[at(row)];
    float* const db = gradient(grads->db, slot, slice);
    float* const dbias = gradient(grads->dbias, slot, slice);
    const float weight = is(Mutation::forgets_token_weight_in_backward) ? 1.0f : weight_of(row);
    const float factor = entry.scaling * weight;
    std::vector<float> h;
    if (db != nullptr) {
      const bool given = h_in != nullptr && !(is(Mutation::ignores_given_h) && x != nullptr);
      h = given ? std::vector<float>(at(entry.rank)) : rank_vector(entry, row, slice);
      for (std::int64_t j = 0; given && j < entry.rank; ++j) {
        h[at(j)] = static_cast<const float*>(
            h_in->data)[row * h_in->strides[0] + slice * table_.shape.max_rank + j];
      }
    }
    for (std::int64_t o = 0; o < table_.shape.out[slice]; ++o) {
      const float scaled = factor * dy_at(row, column + o);
      for (std::int64_t j = 0; db != nullptr && j < entry.rank; ++j) {
        db[o * entry.rank + j] += scaled * h[at(j)];
      }
      if (dbias == nullptr) continue;
      dbias[o] += is(Mutation::unscaled_dbias) ? dy_at(row, column + o) : scaled;
    }
  }

  const NaiveBackend& backend_;
  const AdapterTableView& table_;
  const LoraAddressing& addressing_;
  const CallOptions& options_;
  const int call_;
  std::vector<std::int32_t> slots_;
};

template <class Args>
Status NaiveBackend::training_later(const Args& args, Stream stream) {
  const int call = calls_++;
  return enqueue(stream, [this, copy = args, call] {
    NaiveTraining run(*this, copy.table, copy.addressing, copy.options, call);
    const auto given = [](const auto& view) { return view.data == nullptr ? nullptr : &view; };
    if constexpr (requires { copy.x; }) run.x = given(copy.x);
    if constexpr (requires { copy.ids; }) run.ids = &copy.ids;
    if constexpr (requires { copy.dropout; }) run.dropout = copy.dropout;
    if constexpr (requires { copy.grads; }) {
      run.dy = &copy.dy;
      run.h_in = given(copy.h);
      run.ds_out = given(copy.ds);
      run.grads = &copy.grads;
      if constexpr (requires { copy.dx; }) run.dx = given(copy.dx);
      run.run_backward();
    } else {
      run.y = &copy.y;
      run.h_out = &copy.h;
      run.run_forward();
    }
  });
}

Status NaiveBackend::do_forward(const ForwardArgs& args, const Workspace&, Stream stream) {
  return training_later(args, stream);
}
Status NaiveBackend::do_backward(const BackwardArgs& args, const Workspace&, Stream stream) {
  return training_later(args, stream);
}
Status NaiveBackend::do_forward_embedding(const ForwardEmbeddingArgs& args, const Workspace&,
                                          Stream stream) {
  return training_later(args, stream);
}
Status NaiveBackend::do_backward_embedding(const BackwardEmbeddingArgs& args, const Workspace&,
                                           Stream stream) {
  return training_later(args, stream);
}

}  // namespace rankfold::conformance
