// What the files of cases of forward and backward share.
#pragma once

#include "case.hpp"

namespace rankfold::conformance {

struct Drop {
  const char* name;
  Dropout dropout;
  /// Exact where 1 / (1 - p) is a power of two.
  testing::Fill fill() const {
    const bool exact = dropout.p == 0.5f || dropout.p == 0.75f || dropout.p == 0;
    return exact ? testing::Fill::exact : testing::Fill::random;
  }
};
inline constexpr Drop kDrops[] = {
    {"half", {7, 0, 0.5f, 0}},
    {"quarter_of_row_1000", {0x123456789abcdef0u, 1000, 0.25f, 0}},
    {"most", {0xffffffff00000001u, 3, 0.75f, 0}},
    {"row_2_32", {42, (std::int64_t{1} << 32) - 5, 0.5f, 0}},
    {"tenth", {99, 17, 0.1f, 0}},
    {"none", {5, 9, 0.0f, 0}},
    {"almost_all", {1, 0, 0.999f, 0}},
};

/// The call with NaN in every gap, then with addresses aligned to their element alone.
inline void add_strided(CaseList& list, CallSpec spec) {
  spec.x_gap = 3;
  spec.h_gap = 5;
  spec.y_gap = 7;
  spec.a_gap = 1;
  spec.b_gap = 9;
  spec.slot_gap = 2;
  list.call(name_of(spec.op) + "/layout/strided", "NaN in every gap stays there and is not read",
            spec);
  spec.misalignment = 1;
  list.call(name_of(spec.op) + "/layout/misaligned", "A5: addresses aligned to their element alone",
            spec);
}

}  // namespace rankfold::conformance
