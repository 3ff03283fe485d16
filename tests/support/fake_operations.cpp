#include "fake_operations.hpp"

#include <cstring>
#include <vector>

namespace rankfold::testing {

namespace {

std::size_t offset_of(std::int64_t row, std::int64_t column, std::int64_t row_stride, DType dtype) {
  return static_cast<std::size_t>(row * row_stride + column) * size_of(dtype);
}

template <class T>
T load(const void* data, std::size_t offset) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + offset, sizeof(T));
  return value;
}

double read(const void* data, DType dtype, std::int64_t row, std::int64_t column,
            std::int64_t row_stride) {
  const std::size_t offset = offset_of(row, column, row_stride, dtype);
  switch (dtype) {
    case DType::f16:
      return to_float(load<Half>(data, offset));
    case DType::bf16:
      return to_float(load<BFloat16>(data, offset));
    default:
      return load<float>(data, offset);
  }
}

void write(void* data, DType dtype, std::int64_t row, std::int64_t column, std::int64_t row_stride,
           float value) {
  char* const at = static_cast<char*>(data) + offset_of(row, column, row_stride, dtype);
  if (dtype == DType::f32) {
    std::memcpy(at, &value, sizeof(value));
    return;
  }
  const std::uint16_t bits = dtype == DType::f16 ? to_half(value).bits : to_bfloat16(value).bits;
  std::memcpy(at, &bits, sizeof(bits));
}

// Calls with every (row, slot) that has an adapter.
template <class Call>
void for_each_row(const LoraAddressing& addressing, std::int32_t num_slots, Call&& call) {
  const auto visit = [&](std::int64_t row, std::int32_t slot) {
    if (slot >= 0 && slot < num_slots) call(row, slot);
  };
  if (addressing.mode != AddressingMode::grouped) {
    for (std::int64_t row = 0; row < addressing.num_tokens; ++row) {
      visit(row, addressing.mode == AddressingMode::uniform ? addressing.uniform_slot
                                                            : addressing.token_slots[row]);
    }
    return;
  }
  for (std::int32_t segment = 0; segment < *addressing.num_segments; ++segment) {
    for (auto i = addressing.segment_offsets[segment]; i < addressing.segment_offsets[segment + 1];
         ++i) {
      visit(addressing.token_order[i], addressing.segment_slots[segment]);
    }
  }
}

std::int64_t id_at(const ConstTensorView& ids, std::int64_t row) {
  const auto at = static_cast<std::size_t>(row * ids.strides[0]) * size_of(ids.dtype);
  return ids.dtype == DType::i64 ? load<std::int64_t>(ids.data, at)
                                 : load<std::int32_t>(ids.data, at);
}

// h of one row, by a function that gives element j of slice i.
template <class Element>
void write_h(const AdapterTableView& table, std::int64_t row, std::int32_t slot,
             const TensorView& h, Element&& element) {
  for (std::int32_t i = 0; i < table.shape.num_slices; ++i) {
    const AdapterEntry& entry = table.entries[entry_index(table, slot, 0, i)];
    for (std::int32_t j = 0; j < table.shape.max_rank; ++j) {
      const double value = j < entry.rank ? element(entry, j) : 0.0;
      write(h.data, DType::f32, row, std::int64_t{i} * table.shape.max_rank + j, h.strides[0],
            static_cast<float>(value));
    }
  }
}

}  // namespace

void run_group_tokens(const GroupTokensArgs& args, const LoraAddressing& grouped, void*) {
  auto* const order = const_cast<std::int32_t*>(grouped.token_order);
  auto* const offsets = const_cast<std::int32_t*>(grouped.segment_offsets);
  auto* const slots = const_cast<std::int32_t*>(grouped.segment_slots);
  std::int32_t num_segments = 0;
  std::int32_t at = 0;
  for (std::int32_t slot = 0; slot < args.num_slots; ++slot) {
    const std::int32_t begin = at;
    for (std::int64_t row = 0; row < args.num_tokens; ++row) {
      if (args.token_slots[row] == slot) order[at++] = static_cast<std::int32_t>(row);
    }
    if (at == begin) continue;
    offsets[num_segments] = begin;
    slots[num_segments++] = slot;
  }
  offsets[num_segments] = at;
  *const_cast<std::int32_t*>(grouped.num_segments) = num_segments;
}

void run_shrink(const ConstTensorView& x, const AdapterTableView& table,
                const LoraAddressing& addressing, const TensorView& h) {
  for_each_row(addressing, table.shape.num_slots, [&](std::int64_t row, std::int32_t slot) {
    write_h(table, row, slot, h, [&](const AdapterEntry& entry, std::int32_t j) {
      double sum = 0;
      for (std::int64_t k = 0; k < table.shape.in; ++k) {
        sum += read(x.data, x.dtype, row, k, x.strides[0]) *
               read(entry.a, table.shape.a_dtype, j, k, entry.a_row_stride);
      }
      return sum;
    });
  });
}

void run_gather_shrink(const ConstTensorView& ids, const AdapterTableView& table,
                       const LoraAddressing& addressing, const TensorView& h) {
  for_each_row(addressing, table.shape.num_slots, [&](std::int64_t row, std::int32_t slot) {
    const std::int64_t id = id_at(ids, row);
    write_h(table, row, slot, h, [&](const AdapterEntry& entry, std::int32_t j) {
      if (id < 0 || id >= entry.in_limit) return 0.0;
      return read(entry.a, table.shape.a_dtype, j, id, entry.a_row_stride);
    });
  });
}

void run_expand(const ConstTensorView& h, const AdapterTableView& table,
                const LoraAddressing& addressing, const TensorView& y, YMode mode) {
  const std::int64_t columns = total_out(table.shape);
  if (mode == YMode::overwrite) {
    for (std::int64_t row = 0; row < addressing.num_tokens; ++row) {
      for (std::int64_t o = 0; o < columns; ++o) {
        write(y.data, y.dtype, row, o, y.strides[0], 0.0f);
      }
    }
  }
  for_each_row(addressing, table.shape.num_slots, [&](std::int64_t row, std::int32_t slot) {
    std::int64_t begin = 0;
    for (std::int32_t i = 0; i < table.shape.num_slices; begin += table.shape.out[i], ++i) {
      const AdapterEntry& entry = table.entries[entry_index(table, slot, 0, i)];
      if (entry.rank == 0) continue;
      const float weight =
          addressing.token_weights != nullptr ? addressing.token_weights[row] : 1.0f;
      const float factor = entry.scaling * weight;
      for (std::int64_t o = 0; o < table.shape.out[i]; ++o) {
        double sum = entry.bias != nullptr ? entry.bias[o] : 0.0f;
        for (std::int32_t j = 0; j < entry.rank; ++j) {
          sum += read(h.data, DType::f32, row, std::int64_t{i} * table.shape.max_rank + j,
                      h.strides[0]) *
                 read(entry.b, table.shape.b_dtype, o, j, entry.b_row_stride);
        }
        const double old = read(y.data, y.dtype, row, begin + o, y.strides[0]);
        write(y.data, y.dtype, row, begin + o, y.strides[0],
              static_cast<float>(old + factor * sum));
      }
    }
  });
}

}  // namespace rankfold::testing
