// How the tensor-core backward cuts a problem into blocks.
#include <algorithm>
#include <limits>

#include "configurations.hpp"
#include "kernels/backward_tensor.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

constexpr std::int64_t kRows = 64;  // of a stage; chunks are whole stages
constexpr std::int64_t kSms =
    132;  // what chunks are chosen for; more or fewer run as well, only slower
constexpr std::int64_t kStartRows = 96;  // what a block costs beside its rows, in rows

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) noexcept {
  return (a + b - 1) / b;
}

struct Chunks {
  int rows = 64;
  std::int64_t count = 0;
  std::int64_t partials = 0;
  bool possible = true;  // as the configuration asks
  double cost = 0.0;     // of passing over rows, in rows of the widest blocks
};

// Chunks so that blocks fill whole waves of the device, and few partial sums are made. What the
// workspace needs is bounded by `most`, which grows with the rows, though the chunks chosen go up
// and down.
// width: of a column block, of the widest.
Chunks choose_chunks(const Problem& problem, std::int64_t column_blocks, std::int64_t ranks,
                     const Ratio& change, double width = 1.0) noexcept {
  Chunks chosen;
  const std::int64_t rows = problem.bounds.rows;
  if (rows == 0 || column_blocks == 0) return chosen;
  const std::int64_t most =
      std::min(divide_up(rows, kRows), std::clamp<std::int64_t>(400 / column_blocks, 1, 32));
  double least = std::numeric_limits<double>::max();
  for (std::int64_t n = 1; n <= most; ++n) {
    const std::int64_t chunk = divide_up(divide_up(rows, n), kRows) * kRows,
                       count = divide_up(rows, chunk);
    const double waves = static_cast<double>(divide_up(count * column_blocks, kSms));
    const double sums =
        static_cast<double>(count * 4 * ranks * column_blocks) / static_cast<double>(kSms);
    const double cost =
        waves * (width * static_cast<double>(chunk) + static_cast<double>(kStartRows)) +
        (count > 1 ? sums : 0.0);
    if (cost < least) {
      least = chosen.cost = cost;
      chosen.rows = static_cast<int>(chunk);
      chosen.count = count;
    }
  }
  if (change.times != change.over) {
    const std::int64_t count = chosen.count * change.times / change.over;
    chosen.possible = count >= 1 && count <= most;
    if (chosen.possible) {
      chosen.rows = static_cast<int>(divide_up(divide_up(rows, count), kRows) * kRows);
      chosen.count = divide_up(rows, chosen.rows);
    }
  }
  if (problem.addressing == AddressingMode::uniform) {
    chosen.partials = most;
    return chosen;
  }
  const std::int64_t slots = std::min<std::int64_t>(rows, problem.shape.num_slots);
  chosen.count = slots + (rows - slots) / chosen.rows;
  // A slot of n > chunk rows has at most 2 n / chunk chunks.
  chosen.partials = 2 * most;
  return chosen;
}

bool is_half(DType dtype) noexcept { return dtype == DType::f16 || dtype == DType::bf16; }

}  // namespace

BackwardTiling tile_backward(const Problem& problem) noexcept {
  BackwardTiling tiling;
  const TableShape& shape = problem.shape;
  const bool reads_x = (problem.outputs & (kOutputDa | kRecomputesH)) != 0;
  if (problem.op != Op::backward || problem.options.strategy == Strategy::general ||
      problem.dropout_p > 0.0f || !is_half(problem.y_dtype) || shape.a_dtype != problem.y_dtype ||
      shape.b_dtype != problem.y_dtype || (reads_x && problem.x_dtype != problem.y_dtype) ||
      shape.max_rank < 1 || shape.max_rank > kTileMaxRank) {
    return tiling;
  }
  // A power of two that serves all rows of a chunk would tie the bits of a row to its neighbours.
  if (problem.y_dtype == DType::f16 && problem.options.batch_invariant == BatchInvariant::on)
    return tiling;
  tiling.ranks = shape.max_rank <= 16 ? 16 : shape.max_rank <= 32 ? 32 : 64;
  std::int64_t dy_blocks = 0;
  for (int s = 0; s < shape.num_slices; ++s) dy_blocks += divide_up(shape.out[s], kDyBlockColumns);
  std::int64_t x_blocks = divide_up(shape.in, kXBlockColumns);
  // Grids are of chunks times blocks of columns; those of dbias are 128 wide.
  const std::int64_t most_blocks =
      std::max({dy_blocks, x_blocks, divide_up(total_out(shape), 128), std::int64_t{1}});
  const std::int64_t row_chunks = std::min<std::int64_t>(problem.bounds.rows, shape.num_slots) +
                                  divide_up(problem.bounds.rows, kRows);
  if (row_chunks > std::numeric_limits<std::int32_t>::max() / most_blocks) return tiling;
  tiling.dy_blocks = static_cast<int>(dy_blocks);
  tiling.ds_partials = dy_blocks;
  const BackwardConfiguration change = backward_configuration(problem);
  Chunks dy = choose_chunks(problem, dy_blocks, tiling.ranks, change.dy);
  if (problem.addressing == AddressingMode::uniform && problem.y_dtype == DType::bf16 &&
      keeps_parts(shape)) {
    // Narrower blocks where more of the device works then, or each is done sooner. Fewer rows may
    // be cut the other way, and must fit as well.
    const std::int64_t narrow_blocks = divide_up(shape.out[0], kNarrowDyColumns);
    const Chunks narrow = choose_chunks(problem, narrow_blocks, tiling.ranks, change.dy,
                                        static_cast<double>(kNarrowDyColumns) / kDyBlockColumns);
    tiling.ds_partials = narrow_blocks;
    tiling.x_columns = kWideXColumns;
    x_blocks = divide_up(shape.in, kWideXColumns);
    // The order in which a row's ds is summed must not tell how many rows there are.
    if (narrow.cost < dy.cost && problem.options.batch_invariant != BatchInvariant::on) {
      const std::int64_t partials = dy.partials;
      dy = narrow;
      dy.partials = partials;
      tiling.dy_columns = kNarrowDyColumns;
      tiling.dy_blocks = static_cast<int>(narrow_blocks);
    }
  }
  tiling.x_blocks = static_cast<int>(x_blocks);
  const Chunks x = choose_chunks(problem, x_blocks, tiling.ranks, change.x);
  tiling.has_configuration = dy.possible && x.possible;
  tiling.dy_chunk = dy.rows;
  tiling.dy_chunks = dy.count;
  tiling.dy_partials = dy.partials;
  tiling.x_chunk = x.rows;
  tiling.x_chunks = x.count;
  tiling.x_partials = x.partials;
  tiling.fits = true;
  return tiling;
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
