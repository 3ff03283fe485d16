// The table of a target: its shape, one entry, and the view that an operation takes.
#include <cinttypes>
#include <cmath>
#include <cstddef>
#include <limits>

#include "rankfold/validate.hpp"
#include "validate_check.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

namespace {

constexpr auto kInvalid = StatusCode::invalid_argument;

std::int64_t bytes_of(DType dtype) noexcept { return static_cast<std::int64_t>(size_of(dtype)); }

}  // namespace

bool Check::shape(const TableShape& shape, const char* field) noexcept {
  if (shape.num_slots < 0) {
    return fail(kInvalid, "%snum_slots is %d; it should be 0 or more", field, shape.num_slots);
  }
  if (shape.num_experts < 1) {
    return fail(kInvalid, "%snum_experts is %d; it should be 1 or more", field, shape.num_experts);
  }
  if (shape.num_slices < 1 || shape.num_slices > kMaxSlices) {
    return fail(kInvalid, "%snum_slices is %d; it should be 1 to %d", field, shape.num_slices,
                kMaxSlices);
  }
  if (shape.max_rank < 0) {
    return fail(kInvalid, "%smax_rank is %d; it should be 0 or more", field, shape.max_rank);
  }
  if (shape.in < 1) {
    return fail(kInvalid, "%sin is %" PRId64 "; it should be 1 or more", field, shape.in);
  }
  std::int64_t sum = 0;
  for (int i = 0; i < shape.num_slices; ++i) {
    if (shape.out[i] < 1) {
      return fail(kInvalid, "%sout[%d] is %" PRId64 "; it should be 1 or more", field, i,
                  shape.out[i]);
    }
    if (__builtin_add_overflow(sum, shape.out[i], &sum)) {
      return fail(kInvalid, "%sout[%d] is %" PRId64 "; the sum of out should be below 2^63", field,
                  i, shape.out[i]);
    }
  }
  for (const bool is_a : {true, false}) {
    const DType dtype = is_a ? shape.a_dtype : shape.b_dtype;
    if (rankfold::is_activation(dtype)) continue;
    if (size_of(dtype) == 0) {
      return fail(kInvalid, "%s%c_dtype is %d; it should be f32, f16 or bf16", field,
                  is_a ? 'a' : 'b', static_cast<int>(dtype));
    }
    return fail(kInvalid, "%s%c_dtype is %s; it should be f32, f16 or bf16", field,
                is_a ? 'a' : 'b', to_string(dtype));
  }
  return true;
}

bool Check::entry(const AdapterEntry& entry, const TableShape& shape, std::int32_t slice) noexcept {
  if (slice < 0 || slice >= shape.num_slices) {
    return fail(kInvalid, "slice is %d; it should be 0 to %d (num_slices of the table is %d)",
                slice, shape.num_slices - 1, shape.num_slices);
  }
  if (entry.rank < 0 || entry.rank > shape.max_rank) {
    return fail(kInvalid, "rank is %d; it should be 0 to %d (max_rank of the table)", entry.rank,
                shape.max_rank);
  }
  if (!std::isfinite(entry.scaling)) {
    return fail(kInvalid, "scaling is %g; it should be finite", static_cast<double>(entry.scaling));
  }
  if (entry.rank == 0) return true;  // the rest is never read
  if (entry.in_limit < 1 || entry.in_limit > shape.in) {
    return fail(kInvalid,
                "in_limit is %" PRId64 "; it should be 1 to %" PRId64 " (in of the table)",
                entry.in_limit, shape.in);
  }
  if (entry.a_row_stride < entry.in_limit) {
    return fail(kInvalid,
                "a_row_stride is %" PRId64 "; it should be at least %" PRId64 " (in_limit)",
                entry.a_row_stride, entry.in_limit);
  }
  if (entry.b_row_stride < entry.rank) {
    return fail(kInvalid, "b_row_stride is %" PRId64 "; it should be at least %d (rank)",
                entry.b_row_stride, entry.rank);
  }
  std::int64_t bytes = 0;
  if (!extent_bytes(entry.rank, entry.in_limit, entry.a_row_stride, bytes_of(shape.a_dtype),
                    &bytes)) {
    return fail(kInvalid, "a_row_stride is %" PRId64 "; %d rows of it should be below 2^63 bytes",
                entry.a_row_stride, entry.rank);
  }
  if (!extent_bytes(shape.out[slice], entry.rank, entry.b_row_stride, bytes_of(shape.b_dtype),
                    &bytes)) {
    return fail(kInvalid,
                "b_row_stride is %" PRId64 "; %" PRId64 " rows of it should be below 2^63 bytes",
                entry.b_row_stride, shape.out[slice]);
  }
  // Counted in elements of one row: what lies behind is the strides' matter.
  return array("a", entry.a, entry.in_limit, bytes_of(shape.a_dtype), false) &&
         array("b", entry.b, entry.rank, bytes_of(shape.b_dtype), false) &&
         array("bias", entry.bias, shape.out[slice], sizeof(float), true);
}

bool Check::table(const AdapterTableView& table) noexcept {
  if (!shape(table.shape, "table.shape.")) return false;
  const std::int64_t entries_a_slot =
      std::int64_t{table.shape.num_experts} * table.shape.num_slices;
  if (table.slot_stride < entries_a_slot) {
    return fail(kInvalid,
                "table.slot_stride is %" PRId64 "; it should be at least %" PRId64
                " (num_experts * num_slices)",
                table.slot_stride, entries_a_slot);
  }
  std::int64_t bytes = 0;
  if (!extent_bytes(table.shape.num_slots, entries_a_slot, table.slot_stride, sizeof(AdapterEntry),
                    &bytes)) {
    return fail(kInvalid,
                "table.slot_stride is %" PRId64 "; %d slots of it should be below 2^63 bytes",
                table.slot_stride, table.shape.num_slots);
  }
  return array("table.entries", table.entries, bytes / std::int64_t{sizeof(AdapterEntry)},
               sizeof(AdapterEntry), false) &&
         device("table", table.device);
}

bool Check::layer_table(const AdapterTableView& view) noexcept {
  if (!table(view)) return false;
  if (view.shape.num_experts == 1) return true;
  return fail(kInvalid,
              "table.shape.num_experts is %d; it should be 1 (a bank of experts has its own "
              "operations, such as apply_experts)",
              view.shape.num_experts);
}

}  // namespace detail

Status validate(const TableShape& shape) noexcept {
  Status status;
  detail::Check("table shape", {}, &status).shape(shape, "");
  return status;
}

Status validate(const AdapterEntry& entry, const TableShape& shape, std::int32_t slice) noexcept {
  Status status;
  detail::Check check("adapter entry", {}, &status);
  (void)(check.shape(shape, "shape.") && check.entry(entry, shape, slice));
  return status;
}

RANKFOLD_NAMESPACE_END
