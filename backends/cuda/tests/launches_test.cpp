// How many kernels an apply_linear launches.
#include <doctest/doctest.h>

#include "calls.hpp"
#include "runtime_calls.hpp"

using namespace rankfold;
using namespace rankfold::cuda_test;
using conformance::AddressingForm;

namespace {

// Kernels, copies and fills of the operation itself, without a group_tokens before it.
RuntimeCalls launches_of(const conformance::CallSpec& spec) {
  const OwnedStream stream = make_stream();
  RoundCall call({"apply_linear", spec}, stream);
  throw_if_error(call.run(stream));  // groups, too
  throw_if_error(device().synchronize(stream));
  const conformance::CallArguments arguments = call.arguments(stream);
  const RuntimeCallScope scope;
  throw_if_error(conformance::launch(device(), arguments));
  const RuntimeCalls counts = scope.counts();
  throw_if_error(device().synchronize(stream));
  return counts;
}

conformance::CallSpec linear_spec(std::int64_t tokens, AddressingForm form, std::int32_t rank) {
  conformance::CallSpec spec;
  spec.fill = testing::Fill::random;
  spec.tokens = tokens;
  spec.in = 512;
  spec.out = {256, 128, 128};
  spec.num_slots = 4;
  spec.ranks = {rank};
  spec.form = form;
  return spec;
}

}  // namespace

TEST_CASE("apply_linear: two kernels when grouped, uniform or at most 64 tokens; else three") {
  for (const std::int64_t tokens : {1, 2, 16, 64, 65, 256, 2048}) {
    for (const std::int32_t rank : {8, 16, 64}) {
      for (const AddressingForm form :
           {AddressingForm::tokens, AddressingForm::uniform, AddressingForm::grouped_by_host,
            AddressingForm::grouped_by_backend}) {
        CAPTURE(tokens);
        CAPTURE(rank);
        CAPTURE(static_cast<int>(form));
        const RuntimeCalls counts = launches_of(linear_spec(tokens, form, rank));
        const std::int64_t most = form != AddressingForm::tokens || tokens <= 64 ? 2 : 3;
        CHECK(counts.kernels <= most);
        CHECK(counts.kernels > 0);
        CHECK(counts.others == 0);
      }
    }
  }
}

TEST_CASE("J2: nothing is launched where the host knows that no row has an adapter") {
  for (const std::int64_t tokens : {1, 64, 2048}) {
    for (const AddressingForm form :
         {AddressingForm::tokens, AddressingForm::uniform, AddressingForm::grouped_by_host}) {
      conformance::CallSpec spec = linear_spec(tokens, form, 16);
      spec.active_rows_bound = 0;
      spec.slots = conformance::SlotPattern::none;
      const RuntimeCalls counts = launches_of(spec);
      CHECK(counts.kernels == 0);
      CHECK(counts.others == 0);
    }
  }
}
