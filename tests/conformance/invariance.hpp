// Checks of one call that every operation shares: bits run after run, configurations, workspaces.
#pragma once

#include "case.hpp"

namespace rankfold::conformance {

/// The same call with every strategy, again and again on all streams: the same bits of all outputs.
Outcome check_determinism(Session& session, const CallSpec& spec, int runs);

/// Every configuration that the backend lists gives the same exact bits.
Outcome check_configurations(Session& session, const CallSpec& spec);

/// Sizes grow with every bound.
Outcome check_workspace(Session& session, const CallSpec& spec);

}  // namespace rankfold::conformance
