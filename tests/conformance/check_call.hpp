// Runs one call on every stream and with every strategy, and judges what comes back.
#pragma once

#include "call_spec.hpp"
#include "case.hpp"
#include "device_call.hpp"
#include "session.hpp"

namespace rankfold::conformance {

/// Every value of Strategy but automatic.
const std::vector<Strategy>& forced_strategies();

/// FNV-1a over the outputs of a call.
std::uint64_t digest_of(const CallOutcome& outcome, std::uint64_t seed = 0xcbf29ce484222325u);

/// Judges outputs, guards and status of one run. `where` stands before the message.
Outcome judge_outcome(const FilledCall& filled, const CallOutcome& outcome,
                      const std::string& where);

/// The whole check. With `sweep`, every strategy beside the call's own.
Outcome check_call(Session& session, const FilledCall& filled, bool sweep);

}  // namespace rankfold::conformance
