#include "validate_overlap.hpp"

#include <cinttypes>
#include <limits>

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

bool ByteRange::overlaps(const ByteRange& other) const noexcept {
  if (begin >= other.end || other.begin >= end) return false;
  if (stride == 0 || stride != other.stride) return true;
  // Column windows of one buffer: their extents cross, their rows need not.
  const std::uint64_t distance = begin <= other.begin
                                     ? (other.begin - begin) % stride
                                     : (stride - (begin - other.begin) % stride) % stride;
  return distance < width || distance + other.width > stride;
}

void ByteRanges::add(const char* name, const ConstTensorView& view) noexcept {
  if (view.data == nullptr) return;
  const auto element_bytes = static_cast<std::int64_t>(size_of(view.dtype));
  if (view.num_dims == 1) return add(name, view.data, view.sizes[0], element_bytes);
  std::int64_t bytes = 0;
  extent_bytes(view.sizes[0], view.sizes[1], view.strides[0], element_bytes, &bytes);
  if (bytes == 0) return;
  const auto begin = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(view.data));
  ranges_[static_cast<std::size_t>(count_++)] = {
      name, begin, begin + static_cast<std::uint64_t>(bytes),
      static_cast<std::uint64_t>(view.strides[0] * element_bytes),
      static_cast<std::uint64_t>(view.sizes[1] * element_bytes)};
}

void ByteRanges::add(const char* name, const void* data, std::int64_t count,
                     std::int64_t element_bytes) noexcept {
  if (data == nullptr || count <= 0) return;
  const auto begin = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(data));
  const auto bytes = static_cast<std::uint64_t>(count) * static_cast<std::uint64_t>(element_bytes);
  ranges_[static_cast<std::size_t>(count_++)] = {name, begin, begin + bytes, 0, bytes};
}

void ByteRanges::add(const AdapterTableView& table) noexcept {
  const std::int64_t entries_a_slot =
      std::int64_t{table.shape.num_experts} * table.shape.num_slices;
  std::int64_t bytes = 0;
  extent_bytes(table.shape.num_slots, entries_a_slot, table.slot_stride, sizeof(AdapterEntry),
               &bytes);
  add("table.entries", table.entries, bytes, 1);
}

void ByteRanges::add(const Gradients& grads, const TableShape& shape) noexcept {
  const std::int64_t count = std::int64_t{shape.num_slots} * shape.num_experts * shape.num_slices;
  add("grads.da", grads.da, count, sizeof(float*));
  add("grads.db", grads.db, count, sizeof(float*));
  add("grads.dbias", grads.dbias, count, sizeof(float*));
}

void ByteRanges::add(const LoraAddressing& addressing, const TableShape&) noexcept {
  const std::int64_t rows = addressing.num_tokens;
  // Only what the mode reads: group_tokens() leaves token_slots in a grouped addressing, too.
  if (addressing.mode == AddressingMode::tokens) {
    add("addressing.token_slots", addressing.token_slots, rows, 4);
  } else if (addressing.mode == AddressingMode::grouped) {
    add("addressing.token_order", addressing.token_order, rows, 4);
    add("addressing.segment_offsets", addressing.segment_offsets, addressing.max_segments + 1, 4);
    add("addressing.segment_slots", addressing.segment_slots, addressing.max_segments, 4);
    add("addressing.num_segments", addressing.num_segments, 1, 4);
  }
  add("addressing.token_weights", addressing.token_weights, rows, 4);
}

void ByteRanges::add(const ExpertAddressing& addressing, const TableShape& shape) noexcept {
  if (addressing.mode == ExpertMode::grouped) {
    add("addressing.expert_offsets", addressing.expert_offsets, std::int64_t{shape.num_experts} + 1,
        4);
    add("addressing.row_tokens", addressing.row_tokens, addressing.num_rows, 4);
  } else {
    add("addressing.expert_ids", addressing.expert_ids, addressing.num_rows, 4);
  }
  add("addressing.token_slots", addressing.token_slots, addressing.num_tokens, 4);
  add("addressing.row_weights", addressing.row_weights, addressing.num_rows, 4);
  add("addressing.token_weights", addressing.token_weights, addressing.num_tokens, 4);
}

namespace {

bool overlap(Check& check, const ByteRange& a, const ByteRange& b) noexcept {
  return check.fail(StatusCode::invalid_argument,
                    "%s at [0x%" PRIx64 ", 0x%" PRIx64 ") overlaps %s at [0x%" PRIx64 ", 0x%" PRIx64
                    "); it should share no byte with it",
                    a.name, a.begin, a.end, b.name, b.begin, b.end);
}

}  // namespace

bool ByteRanges::check_outputs(Check& check) const noexcept {
  for (int i = 0; i < num_written_; ++i) {
    const ByteRange& written = ranges_[static_cast<std::size_t>(i)];
    for (int j = i + 1; j < count_; ++j) {
      const ByteRange& other = ranges_[static_cast<std::size_t>(j)];
      if (written.overlaps(other)) return overlap(check, written, other);
    }
  }
  return true;
}

bool ByteRanges::check_workspace(Check& check, const Workspace& workspace) const noexcept {
  const auto begin = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(workspace.data));
  const std::uint64_t room = std::numeric_limits<std::uint64_t>::max() - begin;
  const std::uint64_t bytes = workspace.bytes < room ? workspace.bytes : room;
  const ByteRange range{"workspace", begin, begin + bytes, 0, bytes};
  for (int i = 0; i < count_; ++i) {
    const ByteRange& other = ranges_[static_cast<std::size_t>(i)];
    if (range.overlaps(other)) return overlap(check, range, other);
  }
  return true;
}

}  // namespace detail
RANKFOLD_NAMESPACE_END
