// Calls drawn at random.
#pragma once

#include <cstdint>

#include "case.hpp"

namespace rankfold::conformance {

/// Call `number` of a seed: operation, dtypes, sizes, ranks, addressing, options and layout are all
/// drawn, with at most some millions of multiply-adds.
CallSpec draw_call(std::uint64_t seed, std::uint64_t number);

/// Runs it with every strategy, one in four with every configuration as well.
Outcome run_drawn_call(Session& session, std::uint64_t number);

}  // namespace rankfold::conformance
