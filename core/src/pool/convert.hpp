// Reading a host matrix of any strides and alignment into dense rows of a table's dtype.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rankfold/dtype.hpp"
#include "rankfold/export.hpp"
#include "rankfold/tensor_view.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

/// A host matrix; a vector is one row. Strides in elements, of any sign; data of any alignment.
struct HostMatrix {
  const void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t row_stride = 0;
  std::int64_t column_stride = 0;
  friend bool operator==(const HostMatrix&, const HostMatrix&) = default;
};

/// Of a view of one or two dimensions.
HostMatrix host_matrix(const ConstTensorView& view) noexcept;

/// Whether every value of `from` is a value of `to`.
constexpr bool converts_exactly(DType from, DType to) noexcept {
  return from == to || to == DType::f32;
}

/// Writes elements [first, first + count) of the matrix, row after row, to `destination` in
/// `dtype`, each rounded once. false: a finite value became infinite (the rest is still written).
bool convert(const HostMatrix& source, std::int64_t first, std::int64_t count, DType dtype,
             std::byte* destination) noexcept;

}  // namespace detail
RANKFOLD_NAMESPACE_END
