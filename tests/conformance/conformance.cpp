#include "conformance.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <new>

#include "case_run.hpp"
#include "cases_drawn.hpp"
#include "check_call.hpp"
#include "fill.hpp"
#include "host_call.hpp"
#include "rankfold/operations.hpp"

namespace rankfold::conformance {

CaseResult run_timed(const std::string& name, const Session& session, const std::string& repeat,
                     const std::function<Outcome()>& function) {
  CaseResult result;
  result.name = name;
  const auto start = std::chrono::steady_clock::now();
  Outcome outcome;
  if (!session.error().empty()) {
    outcome = Outcome::fail("no stream to run on: " + session.error());
  } else {
    try {
      outcome = function();
    } catch (const std::bad_alloc&) {
      outcome = Outcome::fail("memory ran out: the case takes more than this process may have");
    } catch (const std::exception& error) {
      outcome = Outcome::fail(error.what());
    }
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  result.verdict = outcome.verdict;
  result.message = std::move(outcome.message);
  result.max_error = outcome.max_error;
  result.digest = outcome.digest;
  if (result.verdict == Verdict::failed) result.repeat = repeat;
  return result;
}

std::string asked_for(const LoraBackend& backend, const RunOptions& options) {
  return options.backend_name.empty() ? backend.name() : options.backend_name;
}

namespace {

constexpr const char* kNameCase = "backend/name";

// "cuda:1" -> "cuda", "CPU" -> "reference".
std::string backend_of(std::string specification) {
  specification = specification.substr(0, specification.find(':'));
  std::transform(specification.begin(), specification.end(), specification.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return specification == "cpu" ? "reference" : specification;
}

Outcome check_name(Session& session) {
  const std::string wanted = backend_of(session.asked_for());
  if (wanted == session.backend().name()) return {};
  return Outcome::fail("the active backend is " + std::string(session.backend().name()) +
                       ", asked for was " + session.asked_for());
}

std::string escape(const std::string& name) {
  std::string text;
  for (const char c : name) {
    if (c == '.' || c == '+' || c == '[' || c == ']') text += '\\';
    text += c;
  }
  return text;
}

// Why the cases of an operation cannot run: the backend lists no strategy for it, and says so. What
// it lists must work, so that a problem which it declines is a failure.
std::string reason_without(Session& session, const std::string& name) {
  const auto op = parse_op(name.substr(0, name.find('/')));
  if (!op || *op < Op::shrink_experts) return {};
  StrategyInfo infos[256];
  const int count = std::min(256, session.backend().list_strategies(infos, 256));
  const bool listed =
      std::any_of(infos, infos + count, [&](const StrategyInfo& info) { return info.op == *op; });
  if (listed) return {};
  Problem problem;
  problem.op = *op;
  problem.shape.num_slots = problem.shape.max_rank = 1;
  problem.shape.in = problem.shape.out[0] = 1;
  if (testing::has_ids(*op)) problem.x_dtype = DType::i32;
  const auto answer = supports(session.backend(), problem);
  return answer.ok() ? std::string() : answer.status().message();
}

CaseResult run_in(Session& session, const Case& one, const RunOptions& options) {
  if (const std::string reason = reason_without(session, one.info.name); !reason.empty()) {
    CaseResult result;
    result.name = one.info.name;
    result.verdict = Verdict::skipped;
    result.message = reason;
    return result;
  }
  if (options.quick && one.info.slow) {
    CaseResult result;
    result.name = one.info.name;
    result.verdict = Verdict::skipped;
    result.message = "slow, left out of a quick run";
    return result;
  }
  const std::string repeat = "rankfold check --backend " + session.asked_for() + " --filter '^" +
                             escape(one.info.name) + "$' --seed " + std::to_string(options.seed);
  return run_timed(one.info.name, session, repeat, [&] { return one.run(session); });
}

void count_verdict(Verdict verdict, Summary& summary) {
  ++(verdict == Verdict::passed   ? summary.passed
     : verdict == Verdict::failed ? summary.failed
                                  : summary.skipped);
}

}  // namespace

const char* to_string(Verdict verdict) noexcept {
  switch (verdict) {
    case Verdict::passed:
      return "passed";
    case Verdict::failed:
      return "failed";
    case Verdict::skipped:
      return "skipped";
  }
  return "?";
}

void CaseList::call(std::string name, std::string about, const CallSpec& spec, bool slow) {
  Case one;
  one.info = {std::move(name), std::move(about), slow || work_of(spec) > 4e7};
  one.build = [spec](std::uint64_t seed) { return build(spec, seed); };
  const bool sweep = spec.sweep && work_of(spec) <= 4e7;
  one.run = [spec, sweep](Session& session) {
    return check_call(session, build(spec, session.seed()), sweep);
  };
  cases_.push_back(std::move(one));
}

void CaseList::scenario(std::string name, std::string about, std::function<Outcome(Session&)> run,
                        bool slow) {
  Case one;
  one.info = {std::move(name), std::move(about), slow};
  one.run = std::move(run);
  cases_.push_back(std::move(one));
}

const std::vector<Case>& all_cases() {
  static const std::vector<Case> cases = [] {
    std::vector<Case> table;
    CaseList list(table);
    list.scenario(kNameCase, "another backend answers than the one that was asked for", check_name);
    add_group_tokens_cases(list);
    add_shape_cases(list);
    add_rank_cases(list);
    add_dtype_cases(list);
    add_addressing_cases(list);
    add_option_cases(list);
    add_layout_cases(list);
    add_number_cases(list);
    add_embedding_cases(list);
    add_isolation_cases(list);
    add_step_cases(list);
    add_invariance_cases(list);
    add_table_cases(list);
    add_refusal_cases(list);
    add_experts_cases(list);
    add_experts_number_cases(list);
    add_experts_window_cases(list);
    add_experts_step_cases(list);
    add_forward_cases(list);
    add_backward_cases(list);
    add_backward_block_cases(list);
    add_training_step_cases(list);
    add_training_refusal_cases(list);
    add_sanitize_cases(list);
    return table;
  }();
  return cases;
}

const std::vector<CaseInfo>& list_cases() {
  static const std::vector<CaseInfo> infos = [] {
    std::vector<CaseInfo> list;
    for (const Case& one : all_cases()) list.push_back(one.info);
    return list;
  }();
  return infos;
}

Result<std::uint64_t> default_seed() {
  bool ok = true;
  const std::uint64_t seed = testing::default_seed(&ok);
  if (ok) return seed;
  return Status(StatusCode::invalid_argument,
                "RANKFOLD_TEST_SEED is no number; it should be a decimal number below 2^64");
}

CaseResult run_case(LoraBackend& backend, std::string_view name, const RunOptions& options) {
  Session session(backend, asked_for(backend, options), options.seed);
  for (const Case& one : all_cases()) {
    if (one.info.name == name) return run_in(session, one, options);
  }
  CaseResult result;
  result.name = name;
  result.verdict = Verdict::failed;
  result.message = "no case of this name; `rankfold check --list` shows all";
  return result;
}

Result<Summary> run_cases(LoraBackend& backend, std::string_view filter, const RunOptions& options,
                          const std::function<void(const CaseResult&)>& report) {
  const auto selected = select_cases(filter);
  if (!selected.ok()) return selected.status();
  Session session(backend, asked_for(backend, options), options.seed);
  Summary summary;
  const auto run_one = [&](const Case& one) {
    const CaseResult result = run_in(session, one, options);
    count_verdict(result.verdict, summary);
    if (report) report(result);
  };
  run_one(all_cases().front());
  std::size_t next = 0;
  int turn = 0;
  for (const Case& one : all_cases()) {
    if (next == selected->size()) break;
    if ((*selected)[next].name != one.info.name) continue;
    ++next;
    if (one.info.name == kNameCase) continue;
    if (turn++ % options.num_shards == options.shard) run_one(one);
  }
  return summary;
}

Summary run_drawn_cases(LoraBackend& backend, std::uint64_t first, std::uint64_t count,
                        const RunOptions& options,
                        const std::function<void(const CaseResult&)>& report) {
  Session session(backend, asked_for(backend, options), options.seed);
  Summary summary;
  const auto add = [&](const CaseResult& result) {
    count_verdict(result.verdict, summary);
    if (report) report(result);
  };
  add(run_in(session, all_cases().front(), options));
  for (std::uint64_t number = first; number - first < count; ++number) {
    const std::string name = "drawn/" + std::to_string(number);
    const CallSpec spec = draw_call(options.seed, number);
    const std::string why = reason_without(session, rankfold::to_string(spec.op));
    if (!why.empty()) {
      CaseResult skipped;
      skipped.name = name;
      skipped.verdict = Verdict::skipped;
      skipped.message = why;
      add(skipped);
      continue;
    }
    const std::string repeat = "rankfold check --backend " + session.asked_for() +
                               " --drawn 1 --first " + std::to_string(number) + " --seed " +
                               std::to_string(options.seed);
    add(run_timed(name, session, repeat, [&] { return run_drawn_call(session, number); }));
  }
  return summary;
}

}  // namespace rankfold::conformance
