// Tensors and plain arrays: dimensions, sizes, strides, extent, null, alignment, device, dtype.
#include <cinttypes>
#include <cstdio>
#include <limits>

#include "rankfold/validate.hpp"
#include "validate_check.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

namespace {

constexpr auto kInvalid = StatusCode::invalid_argument;

struct DTypeText {
  char text[24];
  explicit DTypeText(DType dtype) noexcept {
    if (size_of(dtype) != 0) {
      std::snprintf(text, sizeof(text), "%s", to_string(dtype));
    } else {
      std::snprintf(text, sizeof(text), "%d", static_cast<int>(dtype));
    }
  }
};

bool is_misaligned(const void* data, std::int64_t bytes) noexcept {
  return (reinterpret_cast<std::uintptr_t>(data) & static_cast<std::uintptr_t>(bytes - 1)) != 0;
}

// Whether [data, data + bytes) ends inside the address space.
bool wraps(const void* data, std::int64_t bytes) noexcept {
  return static_cast<std::uint64_t>(bytes) >
         std::numeric_limits<std::uint64_t>::max() - reinterpret_cast<std::uintptr_t>(data);
}

}  // namespace

bool extent_bytes(std::int64_t rows, std::int64_t columns, std::int64_t row_stride,
                  std::int64_t element_bytes, std::int64_t* bytes) noexcept {
  *bytes = 0;
  if (rows == 0 || columns == 0) return true;
  std::int64_t elements = 0;
  return !__builtin_mul_overflow(rows - 1, row_stride, &elements) &&
         !__builtin_add_overflow(elements, columns, &elements) &&
         !__builtin_mul_overflow(elements, element_bytes, bytes);
}

bool Check::matrix(const ConstTensorView& view, const MatrixRule& rule) noexcept {
  if (view.num_dims != 2) {
    if (!is_given(view)) {
      return fail(kInvalid, "%s is not given; it should be [%s, %s] = [%" PRId64 ", %" PRId64 "]",
                  rule.name, rule.rows_of, rule.columns_of, rule.rows, rule.columns);
    }
    return fail(kInvalid, "%s has %d dimensions; it should have 2, [%s, %s]", rule.name,
                view.num_dims, rule.rows_of, rule.columns_of);
  }
  const std::int64_t row_stride = view.strides[0];
  if (view.sizes[0] != rule.rows) {
    return fail(kInvalid, "%s has %" PRId64 " rows; it should have %" PRId64 " (%s)", rule.name,
                view.sizes[0], rule.rows, rule.rows_of);
  }
  if (view.sizes[1] != rule.columns) {
    return fail(kInvalid, "%s has %" PRId64 " columns; it should have %" PRId64 " (%s)", rule.name,
                view.sizes[1], rule.columns, rule.columns_of);
  }
  if (view.strides[1] != 1) {
    return fail(kInvalid, "%s has element stride %" PRId64 "; it should be 1", rule.name,
                view.strides[1]);
  }
  if (row_stride < rule.columns && !(rule.broadcast && row_stride == 0)) {
    return fail(kInvalid, "%s has row stride %" PRId64 "; it should be at least %" PRId64 " (%s)%s",
                rule.name, row_stride, rule.columns, rule.columns_of,
                rule.broadcast ? ", or 0 to broadcast one row" : "");
  }
  const auto element_bytes = static_cast<std::int64_t>(size_of(view.dtype));
  std::int64_t bytes = 0;
  if (!extent_bytes(rule.rows, rule.columns, row_stride, element_bytes, &bytes) ||
      wraps(view.data, bytes)) {
    return fail(kInvalid,
                "%s has %" PRId64 " rows of row stride %" PRId64
                "; it should end inside the address space",
                rule.name, rule.rows, row_stride);
  }
  if (bytes != 0 && view.data == nullptr) {
    return fail(kInvalid, "%s is null; it should point to %" PRId64 " x %" PRId64 " elements",
                rule.name, rule.rows, rule.columns);
  }
  if (is_misaligned(view.data, element_bytes)) {
    return fail(kInvalid, "%s is at %p; it should be aligned to the %d bytes of its elements",
                rule.name, view.data, static_cast<int>(element_bytes));
  }
  return device(rule.name, view.device);
}

bool Check::ids(const ConstTensorView& view, std::int64_t rows) noexcept {
  if (view.num_dims != 1) {
    if (!is_given(view)) {
      return fail(kInvalid, "ids is not given; it should be [%s] = [%" PRId64 "]", kTokens, rows);
    }
    return fail(kInvalid, "ids has %d dimensions; it should have 1, [%s]", view.num_dims, kTokens);
  }
  if (view.dtype != DType::i32 && view.dtype != DType::i64) {
    return fail(kInvalid, "ids has dtype %s; it should be i32 or i64", DTypeText(view.dtype).text);
  }
  if (view.sizes[0] != rows) {
    return fail(kInvalid, "ids has %" PRId64 " elements; it should have %" PRId64 " (%s)",
                view.sizes[0], rows, kTokens);
  }
  if (view.strides[0] != 1) {
    return fail(kInvalid, "ids has element stride %" PRId64 "; it should be 1", view.strides[0]);
  }
  return array("ids", view.data, rows, static_cast<std::int64_t>(size_of(view.dtype)), false) &&
         device("ids", view.device);
}

bool Check::array(const char* name, const void* data, std::int64_t count,
                  std::int64_t element_bytes, bool optional) noexcept {
  if (data == nullptr) {
    if (optional || count == 0) return true;
    return fail(kInvalid, "%s is null; it should point to %" PRId64 " elements", name, count);
  }
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(count, element_bytes, &bytes) || wraps(data, bytes)) {
    return fail(kInvalid, "%s has %" PRId64 " elements; it should end inside the address space",
                name, count);
  }
  if (is_misaligned(data, element_bytes)) {
    return fail(kInvalid, "%s is at %p; it should be aligned to the %d bytes of its elements", name,
                data, static_cast<int>(element_bytes));
  }
  return true;
}

bool Check::is_activation(const char* name, DType dtype) noexcept {
  if (rankfold::is_activation(dtype)) return true;
  return fail(kInvalid, "%s has dtype %s; it should be f32, f16 or bf16", name,
              DTypeText(dtype).text);
}

bool Check::is_float32(const char* name, DType dtype) noexcept {
  if (dtype == DType::f32) return true;
  return fail(kInvalid, "%s has dtype %s; it should be f32", name, DTypeText(dtype).text);
}

bool Check::is_float32_or(const char* name, DType dtype, const char* other,
                          DType other_dtype) noexcept {
  if (dtype == DType::f32 || dtype == other_dtype) return true;
  if (other_dtype == DType::f32) {
    return fail(kInvalid, "%s has dtype %s; it should be f32, as %s is", name,
                DTypeText(dtype).text, other);
  }
  return fail(kInvalid, "%s has dtype %s; it should be f32, or %s as %s is", name,
              DTypeText(dtype).text, to_string(other_dtype), other);
}

MatrixRule rule_of_x(const TableShape& shape, std::int64_t rows, const char* rows_of) noexcept {
  return {"x", rows, rows_of, shape.in, "table.shape.in", true};
}

MatrixRule rule_of_h(const char* name, const TableShape& shape, std::int64_t rows,
                     const char* rows_of) noexcept {
  return {name, rows, rows_of, h_shape(shape, rows).columns,
          "num_slices * max_rank of table.shape"};
}

MatrixRule rule_of_y(const char* name, const TableShape& shape, std::int64_t rows,
                     const char* rows_of) noexcept {
  return {name, rows, rows_of, total_out(shape), "sum of table.shape.out"};
}

}  // namespace detail

MatrixShape h_shape(const TableShape& shape, std::int64_t rows) noexcept {
  return {rows, std::int64_t{shape.num_slices} * shape.max_rank};
}

MatrixShape y_shape(const TableShape& shape, std::int64_t rows) noexcept {
  return {rows, total_out(shape)};
}

RANKFOLD_NAMESPACE_END
