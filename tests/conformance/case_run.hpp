// How one case runs: timed, with what it throws as its failure.
#pragma once

#include <functional>
#include <string>

#include "case.hpp"
#include "conformance.hpp"
#include "session.hpp"

namespace rankfold::conformance {

CaseResult run_timed(const std::string& name, const Session& session, const std::string& repeat,
                     const std::function<Outcome()>& function);

/// options.backend_name, or the backend's own name.
std::string asked_for(const LoraBackend& backend, const RunOptions& options);

}  // namespace rankfold::conformance
