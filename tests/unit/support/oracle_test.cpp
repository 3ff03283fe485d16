// The oracle against calls small enough to work out by hand.
#include <doctest/doctest.h>

#include <limits>

#include "oracle.hpp"

namespace rankfold::testing {

namespace {

HostTensor matrix_of(std::vector<std::int64_t> sizes, std::vector<double> values,
                     DType dtype = DType::f32) {
  HostTensor tensor(dtype, std::move(sizes));
  for (std::size_t i = 0; i < values.size(); ++i)
    tensor.set(static_cast<std::int64_t>(i), values[i]);
  return tensor;
}

// Two slots, two slices (widths 1 and 2), in = 2, ranks 1 2 / 0 1, max_rank 2.
HostCall small_call(Op op) {
  HostCall call;
  call.op = op;
  call.shape.num_slots = 2;
  call.shape.num_slices = 2;
  call.shape.max_rank = 2;
  call.shape.in = 2;
  call.shape.out[0] = 1;
  call.shape.out[1] = 2;
  call.entries.resize(4);
  const auto set = [&](std::size_t e, float scaling, HostTensor a, HostTensor b, HostTensor bias) {
    call.entries[e] = {static_cast<std::int32_t>(a.rows()), scaling, a, b, bias, -1};
  };
  set(0, 2.0f, matrix_of({1, 2}, {1, 2}), matrix_of({1, 1}, {3}), matrix_of({1}, {5}));
  set(1, 0.5f, matrix_of({2, 2}, {1, 0, 0, 1}), matrix_of({2, 2}, {1, 1, 1, -1}), {});
  set(3, 1.0f, matrix_of({1, 2}, {-1, 1}), matrix_of({2, 1}, {1, 10}), {});
  call.addressing.num_tokens = 3;
  call.addressing.token_slots = {0, -1, 1};
  call.x = matrix_of({3, 2}, {1, 2, 100, 100, 3, 4});
  call.y = matrix_of({3, 3}, {10, 20, 30, 40, 50, 60, 70, 80, 90});
  call.h = HostTensor(DType::f32, {3, 4});
  return call;
}

}  // namespace

TEST_CASE("apply_linear by hand") {
  HostCall call = small_call(Op::apply_linear);
  const OracleResult result = compute(call);
  // Row 0, slot 0: h = 1*1 + 2*2 = 5 -> 2 (5*3 + 5) = 40; h = (1, 2) -> 0.5 (3, -1).
  // Row 2, slot 1: slice 0 has rank 0; h = -3 + 4 = 1 -> (1, 10).
  CHECK(result.y.exact[0] == 50);
  CHECK(result.y.exact[1] == 21.5);
  CHECK(result.y.exact[2] == 29.5);
  for (const std::size_t i : {3u, 4u, 5u, 6u}) CHECK(result.y.region[i] == Region::unchanged);
  CHECK(result.y.exact[7] == 81);
  CHECK(result.y.exact[8] == 100);
  CHECK(result.y.delta[0] == 40);
  CHECK(result.max_h_sum == 7);
  CHECK(result.max_y_sum == 15);

  call.addressing.token_weights = {3, 1, 0.5f};
  CHECK(compute(call).y.exact[0] == 130);
  CHECK(compute(call).y.exact[8] == 95);

  call.options.y_mode = YMode::overwrite;
  const OracleResult overwritten = compute(call);
  CHECK(overwritten.y.exact[0] == 120);
  for (const std::size_t i : {3u, 4u, 5u, 6u}) CHECK(overwritten.y.region[i] == Region::zero);
}

TEST_CASE("shrink and expand by hand") {
  const OracleResult shrunk = compute(small_call(Op::shrink));
  CHECK(shrunk.h.exact[0] == 5);
  CHECK(shrunk.h.region[1] == Region::unspecified);  // past rank 1
  CHECK(shrunk.h.exact[2] == 1);
  CHECK(shrunk.h.exact[3] == 2);
  for (std::size_t i = 4; i < 10; ++i) CHECK(shrunk.h.region[i] == Region::unspecified);
  CHECK(shrunk.h.exact[10] == 1);
  CHECK(shrunk.h.region[11] == Region::unspecified);

  HostCall call = small_call(Op::expand);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  call.h = matrix_of({3, 4}, {5, nan, 1, 2, nan, nan, nan, nan, nan, nan, 1, nan});
  const OracleResult expanded = compute(call);
  CHECK(expanded.y.exact[0] == 50);
  CHECK(expanded.y.exact[2] == 29.5);
  CHECK(expanded.y.exact[8] == 100);
}

TEST_CASE("embeddings by hand: ids outside the adapter's columns add nothing") {
  HostCall call;
  call.op = Op::apply_embedding;
  call.shape.num_slots = 1;
  call.shape.max_rank = 2;
  call.shape.in = 4;
  call.shape.out[0] = 1;
  call.entries = {
      {2, 2.0f, matrix_of({2, 3}, {1, 2, 3, 4, 5, 6}), matrix_of({1, 2}, {1, 10}), {}, -1}};
  call.addressing.num_tokens = 4;
  call.addressing.token_slots = {0, 0, 0, 0};
  call.ids = matrix_of({4}, {2, 0, 3, -1}, DType::i64);
  call.y = matrix_of({4, 1}, {1, 1, 1, 1});
  const OracleResult result = compute(call);
  CHECK(result.y.exact[0] == 1 + 2 * (3 + 60));
  CHECK(result.y.exact[1] == 1 + 2 * (1 + 40));
  CHECK(result.y.exact[2] == 1);
  CHECK(result.y.exact[3] == 1);
}

TEST_CASE("which slot a row has, in every form of addressing") {
  HostCall call = small_call(Op::apply_linear);
  call.addressing.num_tokens = 5;
  call.addressing.token_slots = {1, 7, 0, -3, 1};
  const std::vector<std::int32_t> wanted = {1, -1, 0, -1, 1};
  CHECK(row_slots(call) == wanted);
  group_on_host(call.addressing, 2);
  CHECK(call.addressing.num_segments == 2);
  CHECK(std::vector<std::int32_t>(call.addressing.token_order.begin(),
                                  call.addressing.token_order.begin() + 3) ==
        std::vector<std::int32_t>{2, 0, 4});
  CHECK(call.addressing.segment_offsets == std::vector<std::int32_t>{0, 1, 3});
  call.addressing.mode = AddressingMode::grouped;
  CHECK(row_slots(call) == wanted);
  call.addressing.mode = AddressingMode::uniform;
  call.addressing.uniform_slot = 2;
  CHECK(row_slots(call) == std::vector<std::int32_t>(5, -1));
}

TEST_CASE("a shared A is that of the other entry; a broadcast x is one row") {
  HostCall call = small_call(Op::shrink);
  call.entries[3].a = {};
  call.entries[3].shared_a = 0;
  call.x = matrix_of({1, 2}, {1, 2});
  call.x_row_stride = 0;
  const OracleResult result = compute(call);
  CHECK(result.h.exact[0] == 5);
  CHECK(result.h.exact[10] == 5);
}

}  // namespace rankfold::testing
