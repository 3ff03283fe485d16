// Every public struct is expressible in C: plain by C++'s rules, and laid out as a C compiler lays
// out the same members. A member that is inserted, dropped or retyped shows here.
#include "c_layout.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <iterator>
#include <string>
#include <type_traits>

#include "rankfold/rankfold.hpp"

namespace rankfold {

#define S(name) \
  static_assert(std::is_standard_layout_v<name> && std::is_trivially_copyable_v<name>, #name);
#define M(name, member)
#include "c_layout_table.h"
#undef S
#undef M

#define S(name) {#name, sizeof(name)},
#define M(name, member) {#name "." #member, offsetof(name, member)},
const LayoutLine kLayout[] = {
#include "c_layout_table.h"
};
#undef S
#undef M

}  // namespace rankfold

TEST_CASE("sizes and offsets of every public struct are those of C") {
  REQUIRE(std::size(rankfold::kLayout) == kNumCLayout);
  for (std::size_t i = 0; i < kNumCLayout; ++i) {
    CAPTURE(std::string(kCLayout[i].name));
    CHECK(std::string(kCLayout[i].name) == rankfold::kLayout[i].name);
    CHECK(rankfold::kLayout[i].value == kCLayout[i].value);
  }
}

TEST_CASE("enumerations are 32 bits wide") {
  using namespace rankfold;
  CHECK(sizeof(DType) == 4);
  CHECK(sizeof(Op) == 4);
  CHECK(sizeof(StatusCode) == 4);
  CHECK(sizeof(YMode) == 4);
  CHECK(sizeof(MemoryKind) == 4);
  CHECK(sizeof(StreamMode) == 4);
}
