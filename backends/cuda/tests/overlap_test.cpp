// CallOptions.overlap: a call may begin while the kernel in front of it still runs, and what
// follows while the call does; neither may be seen in a result.
#include <doctest/doctest.h>

#include <string>

#include "calls.hpp"
#include "spin.hpp"

using namespace rankfold;
using namespace rankfold::cuda_test;

namespace {

// Few rows and many, which different kernels take.
constexpr std::int64_t kRows[] = {1, 24, 600};

// The call between a kernel that lets it begin at once and brings what it reads only later, all of
// it: rows, weights, tables, addressing; and one that copies what it left as soon as it may.
conformance::Outcome run_between(RoundCall& call, Overlap overlap, Stream stream) {
  const std::size_t bytes = call.memory_bytes() / 16 * 16;
  const Buffer right = Buffer::create(device(), bytes).value();
  const auto copy = [&](void* to, const void* from) {
    throw_if_error(device().copy(to, from, bytes, CopyKind::device_to_device, stream));
  };
  call.reset(stream);
  copy(right.data(), call.memory());
  throw_if_error(device().fill(call.memory(), 0, bytes, stream));
  launch_late_copy(call.memory(), right.data(), bytes, native(stream));
  throw_if_error(call.run(stream, overlap));
  launch_early_copy(right.data(), call.memory(), bytes, native(stream));
  REQUIRE(cudaGetLastError() == cudaSuccess);
  copy(call.memory(), right.data());
  return call.collect(stream, "between, ", nullptr);
}

}  // namespace

TEST_CASE("a kernel in front that writes late, a kernel behind that reads early: every operation") {
  const OwnedStream stream = make_stream();
  for (const std::int64_t rows : kRows) {
    for (const NamedSpec& named : every_operation(rows)) {
      CAPTURE(named.name);
      CAPTURE(rows);
      RoundCall call(named, stream);
      REQUIRE(call.memory() != nullptr);
      for (int round = 0; round < 5; ++round) {
        const conformance::Outcome judged =
            run_between(call, round == 4 ? Overlap::off : Overlap::on, stream);
        CHECK_MESSAGE(judged.passed(), judged.message);
        if (!judged.passed()) break;
      }
    }
  }
}
