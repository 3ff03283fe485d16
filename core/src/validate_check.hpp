// The device-free checks of which validate() of every operation is made. A check that fails writes
// the status and returns false, so that checks are chained by && and the good path builds no text.
#pragma once

#include <cstdint>

#include "rankfold/arguments.hpp"
#include "rankfold/export.hpp"
#include "rankfold/options.hpp"
#include "rankfold/status.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

/// What a matrix argument should be; the *_of texts say where a number comes from.
struct MatrixRule {
  const char* name;
  std::int64_t rows;
  const char* rows_of;
  std::int64_t columns;
  const char* columns_of;
  bool broadcast = false;  ///< row stride 0 is legal
};

class Check {
 public:
  /// Texts begin with "context: ".
  Check(const char* context, Device device, Status* status) noexcept
      : context_(context), device_(device), status_(status) {}
  Check(Op op, Device device, Status* status) noexcept : Check(to_string(op), device, status) {}

  /// Always false.
  [[gnu::cold, gnu::noinline, gnu::format(printf, 3, 4)]] bool fail(StatusCode code,
                                                                    const char* format,
                                                                    ...) noexcept;

  bool options(const CallOptions& options) noexcept;
  bool device(const char* name, Device device) noexcept;

  /// `field` stands before the members' names: "table.shape." or "".
  bool shape(const TableShape& shape, const char* field) noexcept;
  bool entry(const AdapterEntry& entry, const TableShape& shape, std::int32_t slice) noexcept;
  bool table(const AdapterTableView& table) noexcept;
  /// table(), and the table of a layer rather than of a bank of experts.
  bool layer_table(const AdapterTableView& table) noexcept;

  bool addressing(const LoraAddressing& addressing) noexcept;
  bool addressing(const ExpertAddressing& addressing, const TableShape& shape) noexcept;

  /// Dimensions, sizes, strides, extent, null, alignment and device; not the dtype.
  bool matrix(const ConstTensorView& view, const MatrixRule& rule) noexcept;
  /// int32 or int64 [rows].
  bool ids(const ConstTensorView& view, std::int64_t rows) noexcept;
  /// An array of `count` elements of `element_bytes`; null is legal for 0 elements, or when
  /// optional.
  bool array(const char* name, const void* data, std::int64_t count, std::int64_t element_bytes,
             bool optional) noexcept;

  bool is_activation(const char* name, DType dtype) noexcept;
  bool is_float32(const char* name, DType dtype) noexcept;
  /// f32, or the dtype of the other.
  bool is_float32_or(const char* name, DType dtype, const char* other, DType other_dtype) noexcept;

 private:
  const char* context_;
  Device device_;
  Status* status_;
};

/// Whether an optional tensor was given.
inline bool is_given(const ConstTensorView& view) noexcept {
  return view.data != nullptr || view.num_dims != 0;
}

/// Bytes from the first to past the last element of [rows, columns]; false when they pass 2^63 - 1.
/// Sizes and strides must not be negative.
bool extent_bytes(std::int64_t rows, std::int64_t columns, std::int64_t row_stride,
                  std::int64_t element_bytes, std::int64_t* bytes) noexcept;

// The rules of the tensors that several operations have.
MatrixRule rule_of_x(const TableShape& shape, std::int64_t rows, const char* rows_of) noexcept;
MatrixRule rule_of_h(const char* name, const TableShape& shape, std::int64_t rows,
                     const char* rows_of) noexcept;
MatrixRule rule_of_y(const char* name, const TableShape& shape, std::int64_t rows,
                     const char* rows_of) noexcept;

inline constexpr const char* kTokens = "addressing.num_tokens";
inline constexpr const char* kRows = "addressing.num_rows";

}  // namespace detail
RANKFOLD_NAMESPACE_END
