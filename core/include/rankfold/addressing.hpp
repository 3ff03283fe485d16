// Which row of a batch uses which slot, and which row of a routed batch uses which expert.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "rankfold/export.hpp"
#include "rankfold/tensor_view.hpp"

RANKFOLD_NAMESPACE_BEGIN

/// How LoraAddressing says which row uses which slot. The numbers are part of the ABI.
enum class AddressingMode : std::int32_t {
  tokens = 0,   ///< token_slots alone
  grouped = 1,  ///< token_order, segment_offsets, segment_slots, num_segments
  uniform = 2,  ///< uniform_slot for all rows, no arrays
};

/// Which row uses which slot. Plain data; every pointer is device memory that must stay valid until
/// the stream has run the operation. A slot outside [0, num_slots) means "no adapter": the row of y
/// keeps its bits (or becomes zero when overwriting), and nothing of the table is read for it.
/// No operation's status depends on what these arrays hold: check_addressing() is the debug call
/// that looks.
struct LoraAddressing {
  AddressingMode mode = AddressingMode::tokens;
  /// uniform only: the slot of all rows.
  std::int32_t uniform_slot = -1;
  /// Rows of x, h, y and ids.
  std::int64_t num_tokens = 0;
  /// int32 [num_tokens]. Needed in mode tokens, not read in the others.
  const std::int32_t* token_slots = nullptr;

  // Grouped form, by group_tokens() or the host's own. A segment is a run of rows in grouped order
  // that share a slot. Empty segments and repeated slots are legal; a row that stands in no segment
  // has no adapter; a row may stand in at most one. Entries past *num_segments are never read.
  const std::int32_t* token_order = nullptr;      ///< int32 [num_tokens]: row numbers
  const std::int32_t* segment_offsets = nullptr;  ///< int32 [max_segments + 1], ascending
  const std::int32_t* segment_slots = nullptr;    ///< int32 [max_segments]
  const std::int32_t* num_segments = nullptr;     ///< int32 [1], at most max_segments
  std::int64_t max_segments = 0;

  /// What the host knows of the number of rows that have an adapter; -1: nothing (num_tokens).
  /// 0 makes every operation free: no launch (overwriting still zeroes y).
  std::int64_t active_rows_bound = -1;

  /// float32 [num_tokens] or null (all 1): strength of the delta a row; f = scaling * token_weight.
  const float* token_weights = nullptr;

  /// (slot, weight) pairs a token. Only 1 is implemented; other values are unsupported.
  std::int32_t pairs_per_token = 1;
  std::int32_t reserved = 0;

  Device device = {};
};

/// Size in bytes of the memory that group_tokens() fills: monotone in both arguments, the same for
/// every backend. Alignment: 16 bytes. 0 when num_tokens is 0 or an argument is negative; the
/// largest size_t when num_tokens is over 2^31 - 1, which group_tokens() refuses.
RANKFOLD_EXPORT std::size_t grouping_bytes(std::int64_t num_tokens,
                                           std::int32_t num_slots) noexcept;

/// How the rows of a routed (mixture-of-experts) batch are laid out.
enum class ExpertMode : std::int32_t {
  grouped = 0,  ///< rows sorted by expert: expert_offsets (prefill)
  gather = 1,   ///< row = token * top_k + k, expert_ids per row (decode)
};

/// Which row of x a routed row reads.
enum class XRows : std::int32_t {
  own = 0,    ///< one x row per routed row (down projection)
  token = 1,  ///< one x row per token (gate, up)
};

/// Which routed row uses which expert and which slot. Plain data, device pointers as in
/// LoraAddressing. Rows are absolute; a call computes the window [row_begin, row_end).
/// Unchanged rows: slot outside [0, num_slots), local expert outside [0, num_experts) (ids are
/// signed), rank 0, outside the window, at or past expert_offsets[num_experts].
struct ExpertAddressing {
  ExpertMode mode = ExpertMode::grouped;
  XRows x_rows = XRows::own;
  /// Tokens: length of token_slots and token_weights; rows of x when x_rows is token.
  std::int64_t num_tokens = 0;
  /// Routed rows: rows of y and h; rows of x when x_rows is own.
  std::int64_t num_rows = 0;
  /// The window. row_end -1: num_rows.
  std::int64_t row_begin = 0;
  std::int64_t row_end = -1;
  /// Upper bound of rows by which strategies and workspace are chosen, never the window itself; at
  /// least its rows. 0: num_rows. Windows of calls with the same bound are bit-identical to the
  /// whole.
  std::int64_t bound_rows = 0;

  /// grouped: int32 [num_experts + 1], ascending, absolute rows; local experts only.
  const std::int32_t* expert_offsets = nullptr;
  /// grouped: int32 [num_rows], row -> token; null only with x_rows own and no token_slots.
  const std::int32_t* row_tokens = nullptr;
  /// gather: int32 [num_rows], global expert ids, negative = none.
  const std::int32_t* expert_ids = nullptr;
  /// gather: choices a token; num_rows = num_tokens * top_k.
  std::int32_t top_k = 0;
  /// gather: local expert = id - expert_base (expert parallelism).
  std::int32_t expert_base = 0;

  /// int32 [num_tokens], slot of the owning token; null: slot 0 for all.
  const std::int32_t* token_slots = nullptr;
  /// float32 [num_rows] or null, float32 [num_tokens] or null:
  /// f = scaling * row_weight * token_weight, multiplied in that order.
  const float* row_weights = nullptr;
  const float* token_weights = nullptr;

  Device device = {};
};

static_assert(std::is_trivially_copyable_v<LoraAddressing> &&
              std::is_standard_layout_v<LoraAddressing>);
static_assert(std::is_trivially_copyable_v<ExpertAddressing> &&
              std::is_standard_layout_v<ExpertAddressing>);

RANKFOLD_NAMESPACE_END
