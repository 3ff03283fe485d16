// Strided, broadcast and very far rows.
#include <doctest/doctest.h>
#include <sys/mman.h>

#include <cstring>

#include "batch.hpp"

using namespace rankfold;
using namespace rankfold::reference_test;

TEST_CASE("B1: rows of y that are 2^20 elements apart, 2200 of them") {
  constexpr std::int64_t kStride = std::int64_t{1} << 20;
  constexpr std::int64_t kRows = 2200;
  static_assert(kStride * kRows > (std::int64_t{1} << 31));
  Batch batch({.tokens = kRows,
               .in = 8,
               .out = {5},
               .slots = 3,
               .max_rank = 2,
               .x = DType::bf16,
               .y = DType::bf16,
               .a = DType::bf16,
               .b = DType::bf16});
  Elements dense = batch.y;
  REQUIRE(run(batch.linear(dense)).ok());

  // Address space without memory: only the pages that are touched exist.
  const std::size_t bytes = static_cast<std::size_t>(kStride * kRows) * 2;
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  (void)madvise(memory, bytes, MADV_NOHUGEPAGE);
  auto* const base = static_cast<std::byte*>(memory);
  const auto row = [&](std::int64_t t) { return base + static_cast<std::size_t>(t * kStride) * 2; };
  for (std::int64_t t = 0; t < kRows; ++t) {
    std::memcpy(row(t), batch.y.bytes.data() + t * 10, 10);
    std::memset(row(t) + 10, 0x5a, 6);
  }
  ApplyLinearArgs args = batch.linear(dense);
  args.y = matrix(memory, DType::bf16, kRows, 5, {}, kStride);
  REQUIRE(run(args).ok());
  int wrong = 0;
  for (std::int64_t t = 0; t < kRows; ++t) {
    if (std::memcmp(row(t), dense.bytes.data() + t * 10, 10) != 0) ++wrong;
    for (int i = 10; i < 16; ++i) wrong += row(t)[i] != std::byte{0x5a} ? 1 : 0;
  }
  CHECK(wrong == 0);
  munmap(memory, bytes);
}

TEST_CASE("x of row stride 0 is one row for all, and padded rows are left alone") {
  Batch batch({.tokens = 30, .in = 20, .out = {12}, .slots = 2});
  for (std::int64_t t = 1; t < 30; ++t) {
    for (std::int64_t k = 0; k < 20; ++k) {
      batch.x.set(t * 20 + k, static_cast<float>(batch.x.get(k)));
    }
  }
  Elements wanted = batch.y;
  REQUIRE(run(batch.linear(wanted)).ok());
  Elements padded;
  padded.resize(DType::f32, 30 * 15);
  for (std::int64_t i = 0; i < padded.size(); ++i) padded.set(i, 4.0f);
  for (std::int64_t t = 0; t < 30; ++t) {
    for (std::int64_t c = 0; c < 12; ++c) {
      padded.set(t * 15 + c, static_cast<float>(batch.y.get(t * 12 + c)));
    }
  }
  ApplyLinearArgs args = batch.linear(padded);
  args.x.strides[0] = 0;
  args.y.strides[0] = 15;
  REQUIRE(run(args).ok());
  for (std::int64_t t = 0; t < 30; ++t) {
    for (std::int64_t c = 0; c < 15; ++c) {
      CHECK(padded.get(t * 15 + c) == (c < 12 ? wanted.get(t * 12 + c) : 4.0));
    }
  }
}
