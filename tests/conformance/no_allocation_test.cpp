// No operation of the reference backend allocates after one warm-up call, on any stream, with any
// strategy; the counter catches a backend that does.
#include <doctest/doctest.h>

#include <string>

#include "allocation_counter.hpp"
#include "check_call.hpp"
#include "naive_backend.hpp"
#include "rankfold/registry.hpp"

namespace rankfold::conformance {

namespace {

CallSpec spec_of(Op op, std::int64_t tokens, DType dtype, Strategy strategy) {
  CallSpec spec;
  spec.op = op;
  spec.fill = testing::Fill::random;
  spec.tokens = tokens;
  spec.in = 512;
  spec.out = {256};
  spec.num_slots = 6;
  spec.ranks = {16, 8, 33};
  spec.x = spec.y = spec.a = spec.b = dtype;
  spec.options.strategy = strategy;
  spec.dx = dtype;
  spec.outputs |= kOutputDs;
  return spec;
}

// Allocations of `calls` calls and of what they enqueue, after one warm-up call; -1: not supported.
std::int64_t allocations_of(LoraBackend& backend, const CallSpec& spec, StreamMode mode,
                            int calls) {
  auto stream = OwnedStream::create(backend, mode);
  REQUIRE(stream.ok());
  const testing::HostCall call = build_skeleton(spec, 1);
  DeviceCall device(backend, call);
  REQUIRE(device.prepare(*stream).ok());
  const Status warm_up = device.run(*stream, call.options);
  if (warm_up.code() == StatusCode::unsupported) return -1;
  REQUIRE_MESSAGE(warm_up.ok(), warm_up.message());
  REQUIRE(stream->synchronize().ok());
  const testing::AllocationScope scope;
  bool ok = true;
  for (int i = 0; i < calls; ++i) ok = device.run(*stream, call.options).ok() && ok;
  ok = stream->synchronize().ok() && ok;
  const std::int64_t count = scope.count();
  CHECK(ok);
  return count;
}

constexpr Op kOps[] = {Op::group_tokens,      Op::shrink,         Op::expand,
                       Op::apply_linear,      Op::gather_shrink,  Op::apply_embedding,
                       Op::shrink_experts,    Op::expand_experts, Op::apply_experts,
                       Op::forward,           Op::backward,       Op::forward_embedding,
                       Op::backward_embedding};

}  // namespace

TEST_CASE("operations do not allocate") {
  const auto backend = registry().get("reference");
  REQUIRE_MESSAGE(backend.ok(), backend.status().message());
  int measured = 0;
  for (const Op op : kOps) {
    for (const StreamMode mode : {StreamMode::inline_, StreamMode::worker}) {
      for (const std::int64_t tokens : {1, 5, 64, 300}) {
        for (const DType dtype : {DType::f32, DType::bf16}) {
          for (int s = 0; s < kNumStrategies; ++s) {
            if (op == Op::group_tokens && s > 0) break;
            const CallSpec spec = spec_of(op, tokens, dtype, static_cast<Strategy>(s));
            const std::int64_t count = allocations_of(**backend, spec, mode, 20);
            if (count < 0) continue;
            ++measured;
            const std::string what = std::string(rankfold::to_string(op)) + ", strategy " +
                                     rankfold::to_string(static_cast<Strategy>(s)) + ", " +
                                     rankfold::to_string(dtype) + ", T=" + std::to_string(tokens) +
                                     (mode == StreamMode::worker ? ", worker" : ", inline");
            CHECK_MESSAGE(count == 0, what);
          }
        }
      }
    }
  }
  CHECK(measured >= 6 * 2 * 4 * 2);
}

TEST_CASE("a backend that allocates is caught") {
  NaiveBackend backend;  // its vectors and its queue allocate
  for (const StreamMode mode : {StreamMode::inline_, StreamMode::worker}) {
    CHECK(allocations_of(backend, spec_of(Op::shrink, 5, DType::f32, Strategy::automatic), mode,
                         1) > 0);
  }
}

}  // namespace rankfold::conformance
