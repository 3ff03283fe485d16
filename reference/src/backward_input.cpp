// The pass over x and dx: a tile of x is widened once, and makes da of all slices; dx is read and
// written once.
#include <algorithm>

#include "backward_phases.hpp"
#include "kernels/philox.hpp"
#include "kernels/product.hpp"
#include "kernels/simd.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

namespace {

constexpr std::int64_t kPieces = 8;  // of one sum of parts

// Scratch of a lane: each piece starts at a multiple of sixteen floats.
struct Scratch {
  Scratch(float* base, std::int64_t width, std::int64_t ranks) noexcept
      : x(base),
        dropped(x + kTileRows * width),
        delta(dropped + kTileRows * width),
        of_slice(delta + kTileRows * width),
        mask(reinterpret_cast<std::uint32_t*>(of_slice + kTileRows * width)),
        weights(of_slice + 2 * kTileRows * width),
        sums(weights + ranks * width),
        ds(sums + ranks * width) {}
  float* x;             // [rows, width]
  float* dropped;       // x after the dropout of a slice [rows, width]
  float* delta;         // what dx is to get [rows, width]
  float* of_slice;      // of one slice, before its dropout [rows, width]
  std::uint32_t* mask;  // [rows, width]
  float* weights;       // A of all slices [ranks, width]
  float* sums;          // da of all slices [ranks, width]
  float* ds;            // [rows, ranks]
};

// A slice that computes something for the block.
struct SliceWork {
  std::int64_t slice;
  std::int64_t rank;
  std::int64_t owner;  // of its da; -1: da is left out
};

// dx[row] = round(dx[row] + delta), or = round(delta).
template <class TX>
void finish_row(TX* dx, const float* delta, std::int64_t columns, bool overwrite) noexcept {
  for (std::int64_t i = 0; i < columns; i += kPairLanes) {
    const std::int64_t left = columns - i;
    Pair value = load_pair(delta + i);
    if constexpr (kEvenOdd<TX>) value = split_even_odd(value);
    if (!overwrite) {
      const Pair old = left >= kPairLanes ? load_pair(dx + i) : load_pair(dx + i, left);
      value = {add(old.first, value.first), add(old.second, value.second)};
    }
    if (left >= kPairLanes) {
      store_pair(dx + i, value);
    } else {
      store_pair(dx + i, value, left);
    }
  }
}

// One item at work.
class InputBlock {
 public:
  InputBlock(const Backward& backward, const ConstTensorView& x, const TensorView& dx,
             bool overwrite, const Dropout& dropout, const TrainingBlock& block,
             float* scratch) noexcept
      : b_(backward),
        x_(x),
        dx_(dx),
        overwrite_(overwrite),
        dropout_(dropout),
        block_(block),
        ranks_(std::int64_t{backward.shape().num_slices} * backward.shape().max_rank),
        width_(tile_columns(ranks_)),
        scratch_(scratch, width_, ranks_),
        order_(backward.routing.rows.order + block.begin) {
    for (std::int64_t s = 0; s < backward.shape().num_slices; ++s) {
      const std::int64_t rank = backward.bound_rank(block.slot, s);
      if (rank == 0) continue;
      const bool has_da = backward.pointer(backward.grads.da, block.slot, s) != nullptr;
      work_[num_work_++] = {s, rank, has_da ? backward.da_owner(block.slot, s) : -1};
      makes_da_ = makes_da_ || has_da;
    }
  }

  void run(std::int64_t begin, std::int64_t end) noexcept {
    if (num_work_ == 0) {
      if (dx_.data != nullptr && overwrite_) {
        clear_rows(dx_.data, size_of(dx_.dtype), dx_.strides[0], order_, block_.count, begin, end);
      }
      return;
    }
    if (dx_.data == nullptr && !makes_da_) return;
    for (std::int64_t c = begin; c < end; c += width_) {
      const std::int64_t columns = std::min(width_, end - c);
      if (dx_.data != nullptr) load_weights(c, columns);
      if (makes_da_) std::fill_n(scratch_.sums, ranks_ * width_, 0.0f);
      for (std::int64_t first = 0; first < block_.count; first += kTileRows) {
        tile(c, columns, end, first, std::min<std::int64_t>(kTileRows, block_.count - first));
      }
      if (makes_da_) write_da(c, columns);
    }
  }

 private:
  void load_weights(std::int64_t c, std::int64_t columns) noexcept {
    with_element(b_.shape().a_dtype, [&]<class TA>(const TA*) {
      for (std::int64_t w = 0; w < num_work_; ++w) {
        const AdapterEntry& entry = b_.entry(block_.slot, work_[w].slice);
        const TA* const a = static_cast<const TA*>(entry.a) + c;
        float* const to = scratch_.weights + work_[w].slice * b_.shape().max_rank * width_;
        for (std::int64_t j = 0; j < work_[w].rank; ++j) {
          widen<float>(a + j * entry.a_row_stride, to + j * width_, columns);
        }
      }
    });
  }

  void load_ds(std::int64_t first, std::int64_t rows) noexcept {
    const HiddenRows& ds = b_.ds;
    for (std::int64_t m = 0; m < rows; ++m) {
      const std::int64_t row = ds.by_row ? order_[first + m] : block_.begin + first + m;
      for (std::int64_t w = 0; w < num_work_; ++w) {
        const std::int64_t at = work_[w].slice * b_.shape().max_rank;
        std::copy_n(ds.data + row * ds.stride + at, work_[w].rank, scratch_.ds + m * ranks_ + at);
      }
    }
  }

  // What is asked for while a tile is computed: the next rows of x, or of dx where x is not read.
  Ahead next_rows(std::int64_t c, std::int64_t columns, std::int64_t end, std::int64_t next,
                  bool of_dx, std::int64_t steps) const noexcept {
    const bool last = next >= block_.count;
    const std::int64_t column = last ? c + columns : c;
    const auto bytes = static_cast<std::int64_t>(size_of(of_dx ? dx_.dtype : x_.dtype));
    const void* const data = of_dx ? dx_.data : x_.data;
    const std::int64_t stride = of_dx ? dx_.strides[0] : x_.strides[0];
    return {static_cast<const char*>(data) + column * bytes,
            stride * bytes,
            order_ + (last ? 0 : next),
            std::min<std::int64_t>(kTileRows, last ? block_.count : block_.count - next),
            std::min(width_, end - column) * bytes,
            steps};
  }

  void tile(std::int64_t c, std::int64_t columns, std::int64_t end, std::int64_t first,
            std::int64_t rows) noexcept {
    load_ds(first, rows);
    if (makes_da_) {
      with_element(x_.dtype, [&]<class TX>(const TX*) {
        const TX* const x = static_cast<const TX*>(x_.data) + c;
        for (std::int64_t m = 0; m < rows; ++m) {
          widen<float>(x + order_[first + m] * x_.strides[0], scratch_.x + m * width_, columns);
        }
      });
    }
    const std::int64_t vectors = (columns + 15) / 16;
    const std::int64_t dx_steps = num_work_ * vectors * ((rows + 5) / 6);
    const std::int64_t da_steps = num_work_ * vectors * ((work_[0].rank + 5) / 6);
    Ahead next_x;
    Ahead next_dx;
    if (makes_da_) next_x = next_rows(c, columns, end, first + rows, false, da_steps);
    if (dx_.data != nullptr && !overwrite_) {
      next_dx = next_rows(c, columns, end, first + rows, true, dx_steps);
    }
    for (std::int64_t w = 0; w < num_work_; ++w) {
      const SliceWork& work = work_[w];
      const DropoutMask mask(dropout_, work.slice);
      const bool drops = dropout_.p > 0.0f;
      if (drops) {
        for (std::int64_t m = 0; m < rows; ++m) {
          mask.draw(order_[first + m], c, columns, scratch_.mask + m * width_);
        }
      }
      const std::int64_t rank_begin = work.slice * b_.shape().max_rank;
      if (dx_.data != nullptr) {
        multiply({.p = scratch_.ds + rank_begin,
                  .p_row = ranks_,
                  .p_step = 1,
                  .q = scratch_.weights + rank_begin * width_,
                  .q_stride = width_,
                  .c = drops ? scratch_.of_slice : scratch_.delta,
                  .c_stride = width_,
                  .rows = rows,
                  .depth = work.rank,
                  .columns = columns,
                  .accumulate = !drops && w > 0},
                 next_dx);
        if (drops) add_dropped(mask.scale(), rows, columns, w > 0);
      }
      if (work.owner >= 0) {
        if (drops) {
          for (std::int64_t m = 0; m < rows; ++m) {
            drop(scratch_.x + m * width_, scratch_.mask + m * width_, mask.scale(), columns,
                 scratch_.dropped + m * width_);
          }
        }
        multiply({.p = scratch_.ds + rank_begin,
                  .p_row = 1,
                  .p_step = ranks_,
                  .q = drops ? scratch_.dropped : scratch_.x,
                  .q_stride = width_,
                  .c = scratch_.sums + work.owner * b_.shape().max_rank * width_,
                  .c_stride = width_,
                  .rows = work.rank,
                  .depth = rows,
                  .columns = columns,
                  .accumulate = true},
                 next_x);
      }
    }
    if (dx_.data == nullptr) return;
    with_element(dx_.dtype, [&]<class TX>(const TX*) {
      TX* const dx = static_cast<TX*>(dx_.data) + c;
      for (std::int64_t m = 0; m < rows; ++m) {
        finish_row(dx + order_[first + m] * dx_.strides[0], scratch_.delta + m * width_, columns,
                   overwrite_);
      }
    });
  }

  // delta = or += the slice's part of dx, with the mask of its x.
  void add_dropped(float scale, std::int64_t rows, std::int64_t columns, bool accumulate) noexcept {
    for (std::int64_t m = 0; m < rows; ++m) {
      float* const part = scratch_.of_slice + m * width_;
      drop(part, scratch_.mask + m * width_, scale, columns, part);
      put_row(scratch_.delta + m * width_, part, columns, accumulate);
    }
  }

  void write_da(std::int64_t c, std::int64_t columns) noexcept {
    for (std::int64_t w = 0; w < num_work_; ++w) {
      const std::int64_t owner = work_[w].owner;
      // Once for all who share it: the first of them that computes.
      const bool done = std::any_of(work_, work_ + w,
                                    [&](const SliceWork& other) { return other.owner == owner; });
      if (owner < 0 || done) continue;
      const bool split = block_.part >= 0;
      float* const da =
          split ? b_.da_part(block_.part, owner) : b_.pointer(b_.grads.da, block_.slot, owner);
      const float* const sums = scratch_.sums + owner * b_.shape().max_rank * width_;
      const std::int64_t rows = b_.da_rows(block_.slot, owner);
      for (std::int64_t j = 0; j < rows; ++j) {
        put_row(da + j * b_.shape().in + c, sums + j * width_, columns, !split && b_.accumulates());
      }
    }
  }

  const Backward& b_;
  const ConstTensorView& x_;
  const TensorView& dx_;
  const bool overwrite_;
  const Dropout& dropout_;
  const TrainingBlock& block_;
  const std::int64_t ranks_;
  const std::int64_t width_;
  const Scratch scratch_;
  const std::int32_t* const order_;
  SliceWork work_[kMaxSlices];
  std::int64_t num_work_ = 0;
  bool makes_da_ = false;
};

}  // namespace

std::int64_t InputPhase::num_items() const noexcept {
  const bool asked = dx_.data != nullptr || b_.grads.da != nullptr;
  return asked ? b_.routing.num_blocks * num_column_chunks(b_.shape().in) : 0;
}

void InputPhase::run(std::int64_t item, int lane) noexcept {
  const std::int64_t chunks = num_column_chunks(b_.shape().in);
  const std::int64_t columns = column_chunk(b_.shape().in);
  const std::int64_t begin = item % chunks * columns;
  InputBlock(b_, x_, dx_, dx_mode_ == YMode::overwrite, dropout_, b_.routing.blocks[item / chunks],
             b_.workspace.lane_scratch(lane))
      .run(begin, std::min(begin + columns, b_.shape().in));
}

std::int64_t InputPartsPhase::num_items() const noexcept {
  return b_.grads.da != nullptr ? b_.routing.num_split * b_.shape().num_slices * kPieces : 0;
}

void InputPartsPhase::run(std::int64_t item, int) noexcept {
  const TableShape& shape = b_.shape();
  const std::int64_t piece = item % kPieces;
  const std::int64_t slice = item / kPieces % shape.num_slices;
  const SplitSlot& split = b_.routing.split[item / kPieces / shape.num_slices];
  float* const da = b_.pointer(b_.grads.da, split.slot, slice);
  if (da == nullptr || b_.da_owner(split.slot, slice) != slice) return;
  const std::int64_t rows = b_.da_rows(split.slot, slice);
  const std::int64_t step = (rows + kPieces - 1) / kPieces;
  const std::int64_t begin = std::min(piece * step, rows);
  sum_parts({.target = da,
             .parts = b_.da_part(split.first_part, slice),
             .part_stride = std::int64_t{shape.num_slices} * shape.max_rank * shape.in,
             .part_row = shape.in,
             .num_parts = split.num_parts,
             .row_begin = begin,
             .row_end = std::min(begin + step, rows),
             .columns = shape.in,
             .accumulate = b_.accumulates()});
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
