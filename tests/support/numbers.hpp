// Number formats for the oracle, written from IEEE 754 and apart from the library's conversions.
#pragma once

#include <cstdint>

#include "rankfold/dtype.hpp"

namespace rankfold::testing {

/// The value of an element of the dtype, widened exactly. i64 beyond 2^53 loses bits.
double read_number(DType dtype, const void* element) noexcept;

/// One rounding, to nearest, ties to even, of `value` to the dtype, written to `element`. Integers
/// are truncated.
void write_number(DType dtype, void* element, double value) noexcept;

/// `value` rounded once to f32, f16 or bf16: what a write and a read give.
double round_to(DType dtype, double value) noexcept;

/// Distance between neighbours of the dtype at |value|: for |value| in [2^k, 2^(k+1)) that of this
/// binade, at least the smallest subnormal.
double ulp_at(DType dtype, double value) noexcept;

/// Whether `value` lies exactly in the middle between two neighbours of the dtype.
bool is_tie(DType dtype, double value) noexcept;

}  // namespace rankfold::testing
