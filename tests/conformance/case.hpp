// A line of the case table, and how the files of cases add theirs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "call_spec.hpp"
#include "conformance.hpp"
#include "session.hpp"

namespace rankfold::conformance {

/// What a case found.
struct Outcome {
  Verdict verdict = Verdict::passed;
  std::string message;
  double max_error = 0;
  std::uint64_t digest = 0;

  static Outcome fail(std::string why) { return {Verdict::failed, std::move(why), 0, 0}; }
  static Outcome skip(std::string why) { return {Verdict::skipped, std::move(why), 0, 0}; }
  bool passed() const noexcept { return verdict == Verdict::passed; }
};

struct Case {
  CaseInfo info;
  std::function<Outcome(Session&)> run;
  /// Cases of one call: how it is made. Empty for scenarios.
  std::function<FilledCall(std::uint64_t seed)> build;
};

/// All cases, in the order in which they run.
const std::vector<Case>& all_cases();

class CaseList {
 public:
  explicit CaseList(std::vector<Case>& cases) : cases_(cases) {}

  /// A call judged against the oracle, on every stream. Small calls run with every strategy that
  /// the backend accepts, and each that it declines must answer unsupported and leave y alone.
  void call(std::string name, std::string about, const CallSpec& spec, bool slow = false);
  /// Anything else.
  void scenario(std::string name, std::string about, std::function<Outcome(Session&)> run,
                bool slow = false);

 private:
  std::vector<Case>& cases_;
};

// For names of cases.
inline std::string name_of(Op op) { return rankfold::to_string(op); }
inline std::string number(std::int64_t value) { return std::to_string(value); }

inline constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};

// One function a file of cases.
void add_group_tokens_cases(CaseList& list);
void add_shape_cases(CaseList& list);
void add_rank_cases(CaseList& list);
void add_dtype_cases(CaseList& list);
void add_addressing_cases(CaseList& list);
void add_option_cases(CaseList& list);
void add_layout_cases(CaseList& list);
void add_number_cases(CaseList& list);
void add_embedding_cases(CaseList& list);
void add_isolation_cases(CaseList& list);
void add_step_cases(CaseList& list);
void add_invariance_cases(CaseList& list);
void add_table_cases(CaseList& list);
void add_refusal_cases(CaseList& list);
void add_experts_cases(CaseList& list);
void add_experts_number_cases(CaseList& list);
void add_experts_window_cases(CaseList& list);
void add_experts_step_cases(CaseList& list);
void add_forward_cases(CaseList& list);
void add_backward_cases(CaseList& list);
void add_backward_block_cases(CaseList& list);
void add_training_step_cases(CaseList& list);
void add_training_refusal_cases(CaseList& list);
void add_sanitize_cases(CaseList& list);

}  // namespace rankfold::conformance
