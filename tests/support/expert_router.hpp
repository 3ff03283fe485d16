// A seeded router of a mixture of experts: which experts the tokens of a test go to.
#pragma once

#include <cstdint>

#include "host_call.hpp"

namespace rankfold::testing {

enum class Routing {
  skewed,   ///< few experts have most rows, some none; ids negative, of other shards, past the end
  even,     ///< every expert of all shards alike
  one,      ///< local expert 3 (or the last) for all
  twice,    ///< all choices of a token are one expert
  nowhere,  ///< no row goes to a local expert
};

struct RouterSpec {
  ExpertMode mode = ExpertMode::grouped;
  Routing routing = Routing::skewed;
  std::int64_t num_tokens = 0;
  std::int32_t top_k = 2;
  std::int32_t num_experts = 1;     ///< local ones
  std::int32_t global_experts = 0;  ///< of all shards; 0: expert_base + num_experts
  std::int32_t expert_base = 0;     ///< the first local one
  std::uint64_t seed = 1;
};

/// Sets mode, num_rows, top_k, expert_base and the arrays of the mode. grouped: rows of local
/// experts sorted by expert, stable; the rest stand past the last offset, with numbers that are no
/// token.
void route_tokens(const RouterSpec& spec, HostExperts& experts);

}  // namespace rankfold::testing
