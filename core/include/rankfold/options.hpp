// Options of a call, the operations, and the strategies by which a backend computes them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "rankfold/export.hpp"

RANKFOLD_NAMESPACE_BEGIN

/// Every operation of the library. The numbers are part of the ABI.
enum class Op : std::int32_t {
  group_tokens = 0,
  shrink = 1,
  expand = 2,
  apply_linear = 3,
  gather_shrink = 4,
  apply_embedding = 5,
  shrink_experts = 6,
  expand_experts = 7,
  apply_experts = 8,
  forward = 9,
  backward = 10,
  forward_embedding = 11,
  backward_embedding = 12,
  backward_experts = 13,
};
inline constexpr int kNumOps = 14;

/// One way of computing an operation. Which of them a backend has: Backend::supports() and
/// `rankfold list --kernels`. BGMV and SGMV of the literature are `routed` and `grouped`
/// (Punica, arXiv:2310.18547; S-LoRA, arXiv:2311.03285).
enum class Strategy : std::int32_t {
  automatic = 0,         ///< chosen from host-known bounds
  gemv = 1,              ///< matrix-vector: few rows of one adapter
  routed = 2,            ///< each row finds its own adapter
  grouped = 3,           ///< rows grouped by adapter, one blocked product a group
  tensor_core = 4,       ///< tensor-core shrink, expand that folds into y
  general = 5,           ///< general products without tensor cores
  unfused = 6,           ///< delta in float32, then a scaled add
  experts_sorted = 7,    ///< rows sorted by expert
  experts_gathered = 8,  ///< token-major rows, an expert id a row
};
inline constexpr int kNumStrategies = 9;

/// What happens to y (or dx). accumulate: y += delta, rows without adapter keep their bits.
/// overwrite: y = delta, rows without adapter become zero; y's old content is never read.
enum class YMode : std::int32_t { accumulate = 0, overwrite = 1 };

/// off: bits may depend on the size of the batch. on: a row's bits depend only on its own x, y and
/// adapter and on in, out, max_rank, dtypes, backend and device.
enum class BatchInvariant : std::int32_t { off = 0, on = 1 };

/// How a call begins behind the work before it in its queue, where a device can launch a kernel
/// while the one before still ends (CUDA: programmatic dependent launch); no effect elsewhere, nor
/// on any result. on: the first kernel may be launched early; before it waits for the kernel in
/// front of it to end it reads pointers and slots at most, to ask for weights in the cache, and
/// uses nothing of that. The kernel in front must itself have waited for what precedes it, which is
/// so unless it was launched early and never waits. off: nothing of the call begins before all that
/// precedes it has ended.
enum class Overlap : std::int32_t { on = 0, off = 1 };

/// Options that every operation takes. All zero is the default.
struct CallOptions {
  BatchInvariant batch_invariant = BatchInvariant::off;
  /// Forcing a strategy that declines the problem is an error (unsupported), never a fallback.
  Strategy strategy = Strategy::automatic;
  YMode y_mode = YMode::accumulate;
  /// 1 + index of the strategy's configuration (tiles, splits) to use; 0: chosen by the backend.
  std::int32_t configuration = 0;
  Overlap overlap = Overlap::on;
};

/// Names as written above, "auto" for Strategy::automatic; static strings; "?" for other values.
RANKFOLD_EXPORT const char* to_string(Op op) noexcept;
RANKFOLD_EXPORT const char* to_string(Strategy strategy) noexcept;
RANKFOLD_EXPORT const char* to_string(YMode mode) noexcept;
/// What has this name; nothing for any other text.
RANKFOLD_EXPORT std::optional<Op> parse_op(std::string_view name) noexcept;
RANKFOLD_EXPORT std::optional<Strategy> parse_strategy(std::string_view name) noexcept;
RANKFOLD_EXPORT std::optional<YMode> parse_y_mode(std::string_view name) noexcept;

RANKFOLD_NAMESPACE_END
