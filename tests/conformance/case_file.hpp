// Case files, format rankfold-case-1: a call and what it must give, as a safetensors file.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "call_spec.hpp"
#include "host_call.hpp"

namespace rankfold::conformance {

/// What a case file holds.
struct CaseFile {
  testing::HostCall call;
  /// An operation that this version does not replay: nothing else is filled then.
  bool later_operation = false;
  /// Attribute `tolerance` was given: call.tolerance also judges expectations in the output's own
  /// dtype.
  bool has_tolerance = false;
};

/// Reads a file. Errors: those of Safetensors::read(), and malformed_file naming the attribute or
/// tensor, what it is and what it should be. What an operation would refuse is not refused here.
Result<CaseFile> read_case_file(std::string_view path);

/// Writes a call, with its exact outputs as `expect.*` in F64. Layout beyond the format (strides of
/// weights and h, misalignment, shared pointers) is left out.
Status write_case(const FilledCall& filled, std::string_view path);

}  // namespace rankfold::conformance
