// Offsets and extents where 32 bits end.
#include <doctest/doctest.h>

#include <cstdint>
#include <limits>

#include "grouping.hpp"
#include "rankfold/adapter_table.hpp"
#include "rankfold/addressing.hpp"
#include "rankfold/validate.hpp"
#include "validate_check.hpp"

using namespace rankfold;

namespace {

// The bytes of [rows, columns], or -1 when they pass 2^63 - 1.
std::int64_t extent(std::int64_t rows, std::int64_t columns, std::int64_t stride,
                    std::int64_t element_bytes) {
  std::int64_t bytes = 0;
  return detail::extent_bytes(rows, columns, stride, element_bytes, &bytes) ? bytes : -1;
}

}  // namespace

TEST_CASE("B1: row offsets are exact past 2^31 and 2^32") {
  // 262,145 rows of 8,192 elements: the last row starts at element 2^31.
  CHECK(extent(262145, 8192, 8192, 1) == 2147491840);
  CHECK(extent(262145, 8192, 8192, 2) == 4294983680);
  CHECK(extent(262145, 8192, 8192, 4) == 8589967360);
  // 87,383 rows of 24,576 bytes, and the row before.
  CHECK(extent(87383, 12288, 12288, 2) == 2147524608);
  CHECK(extent(87382, 12288, 12288, 2) == 2147500032);
  // Few columns of wide rows.
  CHECK(extent(2200, 3, std::int64_t{1} << 20, 2) == 2199 * (std::int64_t{1} << 21) + 6);
}

TEST_CASE("B1: an extent that does not fit in 64 bits is found without overflow") {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  CHECK(extent(2, 1, kMax, 1) == -1);
  CHECK(extent(2, 1, kMax - 1, 1) == kMax);
  CHECK(extent(2, 1, kMax / 2, 2) == -1);
  CHECK(extent(kMax, kMax, kMax, 4) == -1);
  CHECK(extent(1, kMax, kMax, 1) == kMax);
  CHECK(extent(0, kMax, kMax, 8) == 0);
  CHECK(extent(kMax, 0, kMax, 8) == 0);
}

TEST_CASE("B2: entries of a bank of 512 experts are indexed in 64 bits") {
  AdapterTableView table;
  table.shape.num_slots = 4096;
  table.shape.num_experts = 512;
  table.shape.num_slices = 16;
  table.slot_stride = std::int64_t{1} << 33;
  CHECK(entry_index(table, 0, 0, 0) == 0);
  CHECK(entry_index(table, 1, 2, 3) == (std::int64_t{1} << 33) + 2 * 16 + 3);
  CHECK(entry_index(table, 4095, 511, 15) == 4095 * (std::int64_t{1} << 33) + 511 * 16 + 15);
  // The slot alone passes 2^31 entries with dense slots, too.
  table.slot_stride = 512 * 16;
  CHECK(entry_index(table, 262145, 511, 15) == 262145ll * 8192 + 8191);
  static_assert(entry_index(AdapterTableView{}, 5, 0, 2) == 2);
}

TEST_CASE("B2: sums of out and columns of h pass 2^31") {
  TableShape shape;
  shape.num_slices = 16;
  for (std::int64_t& out : shape.out) out = std::int64_t{1} << 40;
  CHECK(total_out(shape) == std::int64_t{1} << 44);
  shape.max_rank = std::numeric_limits<std::int32_t>::max();
  CHECK(h_shape(shape, 7).columns == 16ll * std::numeric_limits<std::int32_t>::max());
  CHECK(h_shape(shape, 7).rows == 7);
  CHECK(y_shape(shape, 9).columns == std::int64_t{1} << 44);
  CHECK(y_shape(shape, 9).rows == 9);
}

TEST_CASE("B2: 512 experts of rank 64 and 262,144 outputs have an exact extent") {
  // E * O * R = 2^33 elements.
  CHECK(extent(512ll * 262144, 64, 64, 2) == 17179869184);
}

TEST_CASE("memory of group_tokens: exact, aligned, monotone, saturating") {
  CHECK(grouping_bytes(0, 8) == 0);
  CHECK(grouping_bytes(-1, 8) == 0);
  CHECK(grouping_bytes(8, -1) == 0);
  // Order 5 -> 32, offsets 4 -> 16, slots 3 -> 16, count 16, scratch 3 * 2 -> 32.
  CHECK(grouping_bytes(5, 3) == 32 + 16 + 16 + 16 + 32);
  for (const std::int32_t slots : {0, 1, 7, 1000}) {
    std::size_t before = 0;
    for (const std::int64_t tokens : {1ll, 2ll, 1023ll, 1024ll, 1025ll, 100000ll, 2147483647ll}) {
      const std::size_t bytes = grouping_bytes(tokens, slots);
      CHECK(bytes >= before);
      CHECK(bytes % 16 == 0);
      CHECK(bytes <= grouping_bytes(tokens, slots + 1));
      before = bytes;
      const auto layout = detail::grouping_layout(tokens, slots);
      CHECK(layout.segment_offsets >= layout.token_order + static_cast<std::size_t>(tokens) * 4);
      CHECK(layout.scratch + 4u * static_cast<std::size_t>(slots) <= layout.bytes);
    }
    CHECK(grouping_bytes(2147483647, slots) > 8589934588u);
    CHECK(grouping_bytes(2147483648, slots) == std::numeric_limits<std::size_t>::max());
    CHECK(grouping_bytes(std::numeric_limits<std::int64_t>::max(), slots) ==
          std::numeric_limits<std::size_t>::max());
  }
}
