// The conformance cases: one table for every backend, by the public API alone. Used by the tests,
// by `rankfold check`, and by authors of further backends.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "rankfold/backend.hpp"
#include "rankfold/status.hpp"

namespace rankfold::conformance {

enum class Verdict { passed, failed, skipped };

/// "passed", "failed", "skipped".
const char* to_string(Verdict verdict) noexcept;

/// One line of the case table. Names are stable and hierarchical: "apply_linear/rank/exact/r32".
struct CaseInfo {
  std::string name;
  std::string about;  ///< one sentence: what goes wrong where this fails
  bool slow = false;  ///< more than about half a second
};

struct CaseResult {
  std::string name;
  Verdict verdict = Verdict::passed;
  std::string message;   ///< failed: what, where, got and expected; skipped: why
  double max_error = 0;  ///< f16/bf16 outputs: ulp; f32: share of the allowed error
  std::string repeat;    ///< failed: the command that runs this case alone
  double seconds = 0;
  std::uint64_t digest = 0;  ///< of all output bits: equal runs have equal digests
};

struct RunOptions {
  /// As it was asked for, "reference" or "cuda:1": what the first case compares with and what the
  /// repeat command names. Empty: the backend's own name.
  std::string backend_name;
  std::uint64_t seed = 1;
  /// Leaves out the slow cases, for sanitizers and other slow builds.
  bool quick = false;
  /// Of the selected cases every num_shards-th, from number `shard` on: processes side by side.
  int shard = 0;
  int num_shards = 1;
};

struct Summary {
  int passed = 0;
  int failed = 0;
  int skipped = 0;
};

/// RANKFOLD_TEST_SEED, or 1. Errors: invalid_argument when the variable holds no number.
Result<std::uint64_t> default_seed();

/// The table in the order in which it runs.
const std::vector<CaseInfo>& list_cases();

/// Cases whose name the regular expression `filter` (RE2 syntax) finds; empty: all. Errors:
/// invalid_argument (the expression, quoted).
Result<std::vector<CaseInfo>> select_cases(std::string_view filter);

/// Runs one case. An unknown name is a failed result that says so.
CaseResult run_case(LoraBackend& backend, std::string_view name, const RunOptions& options);

/// Runs the selected cases in order and hands each result to `report`. First, whatever the filter,
/// the case "backend/name": the backend is the one that was asked for. Errors as select_cases().
Result<Summary> run_cases(LoraBackend& backend, std::string_view filter, const RunOptions& options,
                          const std::function<void(const CaseResult&)>& report);

/// Runs the calls first to first + count - 1 of those that options.seed draws: operation, dtypes,
/// sizes, ranks, addressing, options and layout are all drawn. Case "drawn/N" is call N; its repeat
/// command runs it alone. The case "backend/name" comes first, as in run_cases().
Summary run_drawn_cases(LoraBackend& backend, std::uint64_t first, std::uint64_t count,
                        const RunOptions& options,
                        const std::function<void(const CaseResult&)>& report);

/// Replays a case file (format rankfold-case-1). What the file cannot mean (an unknown tensor or
/// attribute, an `expect.*` that the operation does not make) is a failed result that names it.
CaseResult run_case_file(LoraBackend& backend, std::string_view path, const RunOptions& options);

/// Writes a case of the table as a case file with the exact outputs as `expect.*`. Errors:
/// invalid_argument (no such case, or one that is more than one call), or those of
/// write_safetensors().
Status write_case_file(std::string_view name, std::uint64_t seed, std::string_view path);

}  // namespace rankfold::conformance
