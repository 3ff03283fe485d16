// LoraAddressing and ExpertAddressing. What their device arrays hold is never looked at here.
#include <cinttypes>
#include <limits>

#include "validate_check.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

namespace {

constexpr auto kInvalid = StatusCode::invalid_argument;
// Row numbers and offsets are int32 on the device.
constexpr std::int64_t kMaxRowNumbers = std::numeric_limits<std::int32_t>::max();

}  // namespace

bool Check::addressing(const LoraAddressing& addressing) noexcept {
  const std::int64_t num_tokens = addressing.num_tokens;
  if (num_tokens < 0) {
    return fail(kInvalid, "addressing.num_tokens is %" PRId64 "; it should be 0 or more",
                num_tokens);
  }
  if (addressing.active_rows_bound < -1) {
    return fail(kInvalid,
                "addressing.active_rows_bound is %" PRId64 "; it should be -1 (unknown) or more",
                addressing.active_rows_bound);
  }
  if (addressing.pairs_per_token != 1) {
    return fail(StatusCode::unsupported,
                "addressing.pairs_per_token is %d; it should be 1: several (slot, weight) pairs a "
                "token are not implemented",
                addressing.pairs_per_token);
  }
  switch (addressing.mode) {
    case AddressingMode::tokens:
      if (!array("addressing.token_slots", addressing.token_slots, num_tokens, 4, false)) {
        return false;
      }
      break;
    case AddressingMode::grouped: {
      const std::int64_t max_segments = addressing.max_segments;
      if (num_tokens > kMaxRowNumbers) {
        return fail(kInvalid,
                    "addressing.num_tokens is %" PRId64 "; it should be at most %" PRId64
                    " in mode grouped, whose row numbers are int32",
                    num_tokens, kMaxRowNumbers);
      }
      if (max_segments < 0 || max_segments > kMaxRowNumbers) {
        return fail(kInvalid, "addressing.max_segments is %" PRId64 "; it should be 0 to %" PRId64,
                    max_segments, kMaxRowNumbers);
      }
      // Without rows nothing of it is read.
      const bool unread = num_tokens == 0;
      if (!array("addressing.token_order", addressing.token_order, num_tokens, 4, unread) ||
          !array("addressing.segment_offsets", addressing.segment_offsets, max_segments + 1, 4,
                 unread) ||
          !array("addressing.segment_slots", addressing.segment_slots, max_segments, 4, unread) ||
          !array("addressing.num_segments", addressing.num_segments, 1, 4, unread)) {
        return false;
      }
      break;
    }
    case AddressingMode::uniform:
      break;
    default:
      return fail(kInvalid,
                  "addressing.mode is %d; it should be tokens (0), grouped (1) or uniform (2)",
                  static_cast<int>(addressing.mode));
  }
  return array("addressing.token_weights", addressing.token_weights, num_tokens, 4, true) &&
         device("addressing", addressing.device);
}

bool Check::addressing(const ExpertAddressing& addressing, const TableShape& shape) noexcept {
  const std::int64_t num_rows = addressing.num_rows;
  const std::int64_t num_tokens = addressing.num_tokens;
  const std::int64_t row_end = addressing.row_end == -1 ? num_rows : addressing.row_end;
  if (static_cast<std::uint32_t>(addressing.mode) > 1) {
    return fail(kInvalid, "addressing.mode is %d; it should be grouped (0) or gather (1)",
                static_cast<int>(addressing.mode));
  }
  if (static_cast<std::uint32_t>(addressing.x_rows) > 1) {
    return fail(kInvalid, "addressing.x_rows is %d; it should be own (0) or token (1)",
                static_cast<int>(addressing.x_rows));
  }
  if (num_tokens < 0) {
    return fail(kInvalid, "addressing.num_tokens is %" PRId64 "; it should be 0 or more",
                num_tokens);
  }
  if (num_rows < 0) {
    return fail(kInvalid, "addressing.num_rows is %" PRId64 "; it should be 0 or more", num_rows);
  }
  if (addressing.row_begin < 0 || addressing.row_begin > num_rows) {
    return fail(kInvalid,
                "addressing.row_begin is %" PRId64 "; it should be 0 to %" PRId64 " (num_rows)",
                addressing.row_begin, num_rows);
  }
  if (row_end < addressing.row_begin || row_end > num_rows) {
    return fail(kInvalid,
                "addressing.row_end is %" PRId64 "; it should be -1, or %" PRId64
                " (row_begin) to %" PRId64 " (num_rows)",
                addressing.row_end, addressing.row_begin, num_rows);
  }
  const std::int64_t window = row_end - addressing.row_begin;
  if (addressing.bound_rows != 0 && addressing.bound_rows < window) {
    return fail(kInvalid,
                "addressing.bound_rows is %" PRId64
                "; it should be 0 (num_rows), or at least the %" PRId64 " rows of the window",
                addressing.bound_rows, window);
  }
  // Without rows nothing of the arrays is read.
  const bool unread = num_rows == 0;
  if (addressing.mode == ExpertMode::grouped) {
    if (num_rows > kMaxRowNumbers || num_tokens > kMaxRowNumbers) {
      const bool rows = num_rows > kMaxRowNumbers;
      return fail(kInvalid,
                  "addressing.%s is %" PRId64 "; it should be at most %" PRId64
                  " in mode grouped, whose row and token numbers are int32",
                  rows ? "num_rows" : "num_tokens", rows ? num_rows : num_tokens, kMaxRowNumbers);
    }
    const bool needs_tokens = addressing.x_rows == XRows::token ||
                              addressing.token_slots != nullptr ||
                              addressing.token_weights != nullptr;
    if (needs_tokens && !unread && addressing.row_tokens == nullptr) {
      return fail(kInvalid,
                  "addressing.row_tokens is null; it should be given, since %s needs the owning "
                  "token of a row",
                  addressing.x_rows == XRows::token   ? "x_rows token"
                  : addressing.token_slots != nullptr ? "token_slots"
                                                      : "token_weights");
    }
    if (!array("addressing.expert_offsets", addressing.expert_offsets,
               std::int64_t{shape.num_experts} + 1, 4, unread) ||
        !array("addressing.row_tokens", addressing.row_tokens, num_rows, 4, true)) {
      return false;
    }
  } else {
    std::int64_t expected = 0;
    if (addressing.top_k < 1 && !(addressing.top_k == 0 && unread)) {
      return fail(kInvalid, "addressing.top_k is %d; it should be 1 or more in mode gather",
                  addressing.top_k);
    }
    if (__builtin_mul_overflow(num_tokens, std::int64_t{addressing.top_k}, &expected) ||
        expected != num_rows) {
      return fail(kInvalid,
                  "addressing.num_rows is %" PRId64 "; it should be num_tokens * top_k = %" PRId64
                  " * %d in mode gather",
                  num_rows, num_tokens, addressing.top_k);
    }
    if (!array("addressing.expert_ids", addressing.expert_ids, num_rows, 4, false)) return false;
  }
  return array("addressing.token_slots", addressing.token_slots, num_tokens, 4, true) &&
         array("addressing.row_weights", addressing.row_weights, num_rows, 4, true) &&
         array("addressing.token_weights", addressing.token_weights, num_tokens, 4, true) &&
         device("addressing", addressing.device);
}

}  // namespace detail
RANKFOLD_NAMESPACE_END
