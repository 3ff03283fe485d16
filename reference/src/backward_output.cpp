// The pass over dy: a tile of it is widened once, and makes ds, db and dbias.
#include <algorithm>

#include "backward_phases.hpp"
#include "kernels/product.hpp"
#include "kernels/simd.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

namespace {

// Scratch of a lane: each piece starts at a multiple of sixteen floats.
struct Scratch {
  Scratch(float* base, std::int64_t tile_columns, std::int64_t rank) noexcept
      : tile(base),
        weights(tile + kTileRows * tile_columns),
        sums(weights + tile_columns * rank),
        bias(sums + tile_columns * rank),
        h(bias + tile_columns),
        factors(h + round_up(kTileRows * rank, 16)) {}
  float* tile;     // dy [rows, tile_columns]
  float* weights;  // B [tile_columns, rank]
  float* sums;     // db [tile_columns, rank]
  float* bias;     // dbias [tile_columns]
  float* h;        // f h [rows, rank]
  float* factors;  // f [rows]
};

// Chunk `chunk` of all slices, in columns of its slice.
struct Chunk {
  std::int64_t slice = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
Chunk chunk_of(const TableShape& shape, std::int64_t chunk) noexcept {
  std::int64_t slice = 0;
  for (; chunk >= num_column_chunks(shape.out[slice]); ++slice) {
    chunk -= num_column_chunks(shape.out[slice]);
  }
  const std::int64_t columns = column_chunk(shape.out[slice]);
  return {slice, chunk * columns, std::min((chunk + 1) * columns, shape.out[slice])};
}

std::int64_t num_chunks(const TableShape& shape) noexcept {
  std::int64_t chunks = 0;
  for (int s = 0; s < shape.num_slices; ++s) chunks += num_column_chunks(shape.out[s]);
  return chunks;
}

// B of `columns` columns, widened and padded with zeros; what they give is never looked at.
void load_weights(const AdapterEntry& entry, DType dtype, std::int64_t column, std::int64_t columns,
                  std::int64_t rank, std::int64_t padded, float* weights) noexcept {
  with_element(dtype, [&]<class TB>(const TB*) {
    const TB* b = static_cast<const TB*>(entry.b) + column * entry.b_row_stride;
    for (std::int64_t c = 0; c < columns; ++c, b += entry.b_row_stride, weights += padded) {
      std::int64_t j = 0;
      for (; j + kLanes <= rank; j += kLanes) store8(weights + j, load8(b + j));
      for (; j < rank; ++j) weights[j] = to_float(b[j]);
      std::fill(weights + rank, weights + padded, 0.0f);
    }
  });
}

// f h of some rows, padded with zeros. Nothing past the rank is read.
void load_hidden(const Backward& backward, const TrainingBlock& block, std::int64_t slice,
                 std::int64_t first, std::int64_t rows, const float* factors, std::int64_t rank,
                 std::int64_t padded, float* hidden) noexcept {
  const HiddenRows& h = backward.h;
  for (std::int64_t m = 0; m < rows; ++m, hidden += padded) {
    const std::int64_t place = block.begin + first + m;
    const std::int64_t row = h.by_row ? backward.routing.rows.order[place] : place;
    const float* const from = h.data + row * h.stride + slice * backward.shape().max_rank;
    for (std::int64_t j = 0; j < rank; ++j) hidden[j] = factors[m] * from[j];
    std::fill(hidden + rank, hidden + padded, 0.0f);
  }
}

}  // namespace

std::int64_t OutputPhase::num_items() const noexcept {
  return b_.routing.num_blocks * num_chunks(b_.shape());
}

void OutputPhase::run(std::int64_t item, int lane) noexcept {
  const TableShape& shape = b_.shape();
  const std::int64_t chunks = num_chunks(shape);
  // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): a table has a slice
  const TrainingBlock& block = b_.routing.blocks[item / chunks];
  const Chunk chunk = chunk_of(shape, item % chunks);
  const std::int64_t rank = b_.bound_rank(block.slot, chunk.slice);
  if (rank == 0) return;
  const AdapterEntry& entry = b_.entry(block.slot, chunk.slice);
  const bool makes_ds = needs_ds(b_.outputs);
  float* db = b_.pointer(b_.grads.db, block.slot, chunk.slice);
  float* dbias = b_.pointer(b_.grads.dbias, block.slot, chunk.slice);
  std::int64_t db_stride = rank;
  bool adds = b_.accumulates();
  if (block.part >= 0) {
    adds = false;
    db_stride = shape.max_rank;
    if (db != nullptr) db = b_.db_part(block.part, chunk.slice);
    if (dbias != nullptr) dbias = b_.dbias_part(block.part, chunk.slice);
  }
  if (!makes_ds && db == nullptr && dbias == nullptr) return;

  const std::int64_t padded = pad_rank(rank);
  const std::int64_t part_rank = pad_rank(shape.max_rank);
  const std::int64_t width = tile_columns(part_rank);
  const Scratch scratch(b_.workspace.lane_scratch(lane), width, part_rank);
  float* const ds = makes_ds ? b_.ds_part(item % chunks) + block.begin * part_rank : nullptr;
  const std::int32_t* const order = b_.routing.rows.order + block.begin;
  const float* const token_weights = b_.addressing.token_weights;
  const auto dy_bytes = static_cast<std::int64_t>(size_of(b_.dy.dtype));
  const std::int64_t dy_column = b_.output_column(chunk.slice);

  for (std::int64_t c = chunk.begin; c < chunk.end; c += width) {
    const std::int64_t columns = std::min(width, chunk.end - c);
    if (makes_ds) {
      load_weights(entry, shape.b_dtype, c, columns, rank, padded, scratch.weights);
    }
    if (db != nullptr) std::fill_n(scratch.sums, columns * padded, 0.0f);
    if (dbias != nullptr) std::fill_n(scratch.bias, columns, 0.0f);
    for (std::int64_t first = 0; first < block.count; first += kTileRows) {
      const std::int64_t rows = std::min<std::int64_t>(kTileRows, block.count - first);
      for (std::int64_t m = 0; m < rows; ++m) {
        const float weight = token_weights != nullptr ? token_weights[order[first + m]] : 1.0f;
        scratch.factors[m] = entry.scaling * weight;
      }
      with_element(b_.dy.dtype, [&]<class TY>(const TY*) {
        const TY* const from = static_cast<const TY*>(b_.dy.data) + dy_column + c;
        for (std::int64_t m = 0; m < rows; ++m) {
          widen<float>(from + order[first + m] * b_.dy.strides[0], scratch.tile + m * width,
                       columns);
        }
      });
      const std::int64_t next = first + rows;
      const bool last = next >= block.count;  // then the first rows of the next columns
      const std::int64_t tiles =
          (padded + 15) / 16 *
          ((makes_ds ? (rows + 5) / 6 : 0) + (db != nullptr ? (columns + 5) / 6 : 0));
      const std::int64_t next_column = last ? c + width : c;
      Ahead ahead(static_cast<const char*>(b_.dy.data) + (dy_column + next_column) * dy_bytes,
                  b_.dy.strides[0] * dy_bytes, order + (last ? 0 : next),
                  last ? std::min<std::int64_t>(kTileRows, block.count)
                       : std::min(kTileRows, block.count - next),
                  std::max<std::int64_t>(std::min(width, chunk.end - next_column), 0) * dy_bytes,
                  tiles);
      if (makes_ds) {
        multiply({.p = scratch.tile,
                  .p_row = width,
                  .p_step = 1,
                  .q = scratch.weights,
                  .q_stride = padded,
                  .c = ds + first * part_rank,
                  .c_stride = part_rank,
                  .rows = rows,
                  .depth = columns,
                  .columns = padded,
                  .accumulate = c > chunk.begin},
                 ahead);
      }
      if (db != nullptr) {
        load_hidden(b_, block, chunk.slice, first, rows, scratch.factors, rank, padded, scratch.h);
        multiply({.p = scratch.tile,
                  .p_row = 1,
                  .p_step = width,
                  .q = scratch.h,
                  .q_stride = padded,
                  .c = scratch.sums,
                  .c_stride = padded,
                  .rows = columns,
                  .depth = rows,
                  .columns = padded,
                  .accumulate = true},
                 ahead);
      }
      if (dbias != nullptr) {
        for (std::int64_t m = 0; m < rows; ++m) {
          const float factor = scratch.factors[m];
          const float* const row = scratch.tile + m * width;
          for (std::int64_t i = 0; i < columns; ++i) scratch.bias[i] += factor * row[i];
        }
      }
    }
    if (db != nullptr) {
      for (std::int64_t i = 0; i < columns; ++i) {
        put_row(db + (c + i) * db_stride, scratch.sums + i * padded, rank, adds);
      }
    }
    if (dbias != nullptr) put_row(dbias + c, scratch.bias, columns, adds);
  }
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
