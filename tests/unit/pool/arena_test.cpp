#include "pool/arena.hpp"

#include <doctest/doctest.h>

#include <map>
#include <random>

using namespace rankfold;
using namespace rankfold::detail;

namespace {

std::vector<std::uint64_t> sizes_of(std::initializer_list<std::uint64_t> list) { return list; }

}  // namespace

TEST_CASE("arena: matrices of one placement follow each other in the smallest extent that fits") {
  Arena arena(1024);
  Placement a, b, c, d;
  REQUIRE(arena.place(sizes_of({256}), &a));
  REQUIRE(arena.place(sizes_of({64}), &b));
  REQUIRE(arena.place(sizes_of({256}), &c));
  arena.release(b.extents);  // a hole of 64 between a and c, 448 behind c
  REQUIRE(arena.place(sizes_of({16, 32, 16}), &d));
  CHECK(d.extents.size() == 1);
  CHECK(d.offsets == sizes_of({256, 272, 304}));
  CHECK(arena.in_use() == 576);
}

TEST_CASE("arena: released extents join with both neighbours") {
  Arena arena(300);  // 288 whole units
  CHECK(arena.bytes() == 288);
  Placement p[3];
  for (auto& placement : p) REQUIRE(arena.place(sizes_of({96}), &placement));
  CHECK(arena.free_bytes() == 0);
  arena.release(p[0].extents);
  arena.release(p[2].extents);
  CHECK(arena.largest_free() == 96);
  arena.release(p[1].extents);
  CHECK(arena.largest_free() == 288);
}

TEST_CASE("arena: what fits nowhere in one piece is split between matrices") {
  Arena arena(256);
  Placement p[4], split;
  for (auto& placement : p) REQUIRE(arena.place(sizes_of({64}), &placement));
  arena.release(p[0].extents);
  arena.release(p[2].extents);
  REQUIRE(arena.place(sizes_of({48, 48, 16}), &split));
  CHECK(split.extents.size() == 2);
  CHECK(split.offsets == sizes_of({0, 128, 176}));
  CHECK(arena.free_bytes() == 16);
  arena.release(split.extents);
  CHECK(arena.free_bytes() == 128);
}

TEST_CASE("arena: no room changes nothing") {
  Arena arena(256);
  Placement p[4];
  for (auto& placement : p) REQUIRE(arena.place(sizes_of({64}), &placement));
  arena.release(p[0].extents);
  arena.release(p[2].extents);
  Placement none{{{7, 7}}, {7}};
  CHECK_FALSE(arena.place(sizes_of({16, 80}), &none));  // enough bytes, no extent of 80
  CHECK_FALSE(arena.place(sizes_of({144}), &none));
  CHECK(none.offsets == sizes_of({7}));
  CHECK(arena.free_bytes() == 128);
  CHECK(arena.largest_free() == 64);
}

TEST_CASE("arena: an exact extent is taken, and its free parts are told") {
  Arena arena(256);
  arena.take({64, 32});
  CHECK(arena.free_bytes() == 224);
  const auto parts = arena.free_within({48, 64});
  REQUIRE(parts.size() == 2);
  CHECK(parts[0].offset == 48);
  CHECK(parts[0].bytes == 16);
  CHECK(parts[1].offset == 96);
  CHECK(parts[1].bytes == 16);
  arena.release(Extent{64, 32});
  CHECK(arena.largest_free() == 256);
}

TEST_CASE("arena: random placements never overlap, and all bytes come back") {
  std::mt19937 random(20240607);
  Arena arena(1 << 16);
  std::vector<Placement> held;
  std::map<std::uint64_t, std::uint64_t> used;  // offset -> end
  int num_placed = 0, num_refused = 0;
  for (int round = 0; round < 20000; ++round) {
    if (held.empty() || random() % 2 == 0) {
      std::vector<std::uint64_t> sizes(1 + random() % 6);
      for (auto& size : sizes) size = 16 * (1 + random() % 128);
      Placement placement;
      if (!arena.place(sizes, &placement)) {
        ++num_refused;
        continue;
      }
      ++num_placed;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        const std::uint64_t begin = placement.offsets[i], end = begin + sizes[i];
        REQUIRE(end <= arena.bytes());
        const auto after = used.lower_bound(begin);
        REQUIRE((after == used.end() || after->first >= end));
        REQUIRE((after == used.begin() || std::prev(after)->second <= begin));
        used[begin] = end;
      }
      held.push_back(std::move(placement));
    } else {
      const std::size_t victim = random() % held.size();
      for (const auto offset : held[victim].offsets) used.erase(offset);
      arena.release(held[victim].extents);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(victim));
    }
    std::uint64_t bytes = 0;
    for (const auto& [begin, end] : used) bytes += end - begin;
    REQUIRE(bytes == arena.in_use());
  }
  CHECK(num_placed > 1000);
  CHECK(num_refused > 100);
  for (const auto& placement : held) arena.release(placement.extents);
  CHECK(arena.largest_free() == arena.bytes());
}
