// Runs one call on every stream and with every strategy, and judges what comes back.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "call_spec.hpp"
#include "case.hpp"
#include "device_call.hpp"
#include "session.hpp"

namespace rankfold::conformance {

/// Every value of Strategy but automatic.
const std::vector<Strategy>& forced_strategies();

/// One output of a call, as the contract, the caller and the backend know it.
struct CallOutput {
  std::string name;  ///< "y", "h", "dx", "ds", "da.SLOT.SLICE", ...: as in case files
  const testing::Expected* expected = nullptr;
  const testing::HostTensor* before = nullptr;
  const testing::HostTensor* got = nullptr;
};
std::vector<CallOutput> outputs_of(const FilledCall& filled, const CallOutcome& outcome);

/// FNV-1a over the outputs of a call.
std::uint64_t digest_of(const CallOutcome& outcome, std::uint64_t seed = 0xcbf29ce484222325u);

/// Judges outputs, guards and status of one run. `where` stands before the message.
Outcome judge_outcome(const FilledCall& filled, const CallOutcome& outcome,
                      const std::string& where);

/// Judges one run; the text stands before the message.
using Judge = std::function<Outcome(const CallOutcome& outcome, const std::string& where)>;

/// The whole check. With `sweep`, every strategy beside the call's own. Without a judge,
/// judge_outcome().
Outcome check_call(Session& session, const FilledCall& filled, bool sweep,
                   const Judge& judge = nullptr);

/// Whether rows and columns of all tensors are as many as addressing and table say, which is what
/// the oracle needs; the operation refuses what is not.
bool shapes_fit(const testing::HostCall& call);

}  // namespace rankfold::conformance
