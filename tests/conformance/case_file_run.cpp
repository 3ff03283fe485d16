// Replays a case file, and writes one from the case table.
#include <algorithm>
#include <cmath>

#include "case_file.hpp"
#include "case_run.hpp"
#include "check_call.hpp"
#include "tolerance.hpp"

namespace rankfold::conformance {

using testing::Expected;
using testing::HostCall;
using testing::HostTensor;
using testing::Judgement;
using testing::Region;

namespace {

// The oracle's answer with the exact values of the file in place of its own.
Expected with_values(const CallOutput& output, bool adds, const HostTensor& values) {
  Expected expected = *output.expected;
  for (std::size_t i = 0; i < expected.exact.size(); ++i) {
    if (expected.region[i] == Region::unspecified) continue;
    const auto at = static_cast<std::int64_t>(i);
    expected.exact[i] = values.get(at);
    expected.delta[i] = values.get(at) - (adds ? output.before->get(at) : 0.0);
    expected.region[i] = Region::computed;
  }
  return expected;
}

// Whether the output is added to what it held.
bool adds_to(const HostCall& call, const std::string& name) {
  if (name == "h" || name == "ds") return false;
  const bool gradient = name.find('.') != std::string::npos;
  return (gradient ? call.gradient_mode : call.options.y_mode) == YMode::accumulate;
}

Judgement judge_values(const CaseFile& file, const CallOutput& output, const HostTensor& values) {
  const HostCall& call = file.call;
  const Expected& oracle = *output.expected;
  const HostTensor& before = *output.before;
  const HostTensor& got = *output.got;
  if (values.dtype == DType::f64 || file.has_tolerance) {
    // What the contract leaves alone keeps its bits, whatever the file expects there.
    Expected untouched = oracle;
    for (Region& region : untouched.region) {
      if (region == Region::computed) region = Region::unspecified;
    }
    Judgement judgement = testing::judge(untouched, before, got, testing::Tolerance::exact);
    if (!judgement.passed) return judgement;
    return testing::judge(with_values(output, adds_to(call, output.name), values), before, got,
                          call.tolerance, call.relative_tolerance);
  }
  for (std::int64_t i = 0; i < values.count(); ++i) {
    if (oracle.region[static_cast<std::size_t>(i)] == Region::unspecified) continue;
    if (got.same_bits(i, values)) continue;
    return {false,
            "element " + std::to_string(i) + " is " + std::to_string(got.get(i)) + ", expected " +
                std::to_string(values.get(i)) + " bit for bit",
            INFINITY};
  }
  return {};
}

// The defined part of an array of group_tokens.
Outcome judge_part(const std::string& name, const HostTensor& wanted, const HostTensor& got) {
  if (wanted.count() > got.count()) {
    return Outcome::fail("expect." + name + " has " + std::to_string(wanted.count()) +
                         " elements, the operation makes " + std::to_string(got.count()));
  }
  for (std::int64_t i = 0; i < wanted.count(); ++i) {
    if (wanted.same_bits(i, got)) continue;
    return Outcome::fail(name + "[" + std::to_string(i) + "] is " +
                         std::to_string(static_cast<std::int64_t>(got.get(i))) + ", expected " +
                         std::to_string(static_cast<std::int64_t>(wanted.get(i))));
  }
  return {};
}

Outcome judge_file(const CaseFile& file, const FilledCall& filled, const CallOutcome& outcome,
                   const std::string& where) {
  const HostCall& call = file.call;
  if (call.expect_status) return judge_outcome(filled, outcome, where);
  if (!outcome.status.ok()) {
    return Outcome::fail(where + "the call returned " + to_string(outcome.status.code()) + ": " +
                         outcome.status.message());
  }
  if (!outcome.damage.empty()) return Outcome::fail(where + outcome.damage);
  Outcome result;
  for (const CallOutput& output : outputs_of(filled, outcome)) {
    const auto expected = call.expect.find(output.name);
    if (expected == call.expect.end()) continue;
    const Judgement judgement = judge_values(file, output, expected->second);
    result.max_error = std::max(result.max_error, judgement.max_error);
    if (!judgement.passed) {
      result.verdict = Verdict::failed;
      result.message = where + output.name + ": " + judgement.message;
      return result;
    }
  }
  if (call.op != Op::group_tokens) return result;
  for (const auto& [name, values] : call.expect) {
    const HostTensor& got = name == "token_order"       ? outcome.token_order
                            : name == "segment_offsets" ? outcome.segment_offsets
                            : name == "segment_slots"   ? outcome.segment_slots
                                                        : outcome.num_segments;
    if (Outcome part = judge_part(name, values, got); !part.passed()) {
      part.message = where + part.message;
      return part;
    }
  }
  return result;
}

// An operation of a later version: the backend itself says that it does not have it.
Outcome run_later_operation(Session& session, const CaseFile& file) {
  Problem problem;
  problem.op = file.call.op;
  problem.shape.num_slots = problem.shape.max_rank = 1;
  problem.shape.in = problem.shape.out[0] = 1;
  const auto answer = supports(session.backend(), problem);
  if (answer.ok()) {
    return Outcome::fail(std::string(to_string(problem.op)) +
                         ": this version replays no case files of this operation");
  }
  if (file.call.expect_status == answer.status().code()) return {};
  return Outcome::fail(std::string(to_string(answer.status().code())) + ": " +
                       answer.status().message());
}

Outcome replay(Session& session, std::string_view path) {
  const auto file = read_case_file(path);
  if (!file.ok()) return Outcome::fail(file.status().message());
  if (file->later_operation) return run_later_operation(session, *file);
  FilledCall filled{file->call, {}};
  const bool computes = !file->call.expect_status && !file->call.expect.empty();
  if (computes && rows_fit(file->call)) filled.oracle = testing::compute(file->call);
  return check_call(session, filled, false,
                    [&](const CallOutcome& outcome, const std::string& where) {
                      return judge_file(*file, filled, outcome, where);
                    });
}

}  // namespace

CaseResult run_case_file(LoraBackend& backend, std::string_view path, const RunOptions& options) {
  Session session(backend, asked_for(backend, options), options.seed);
  return run_timed(
      std::string(path), session,
      "rankfold check --backend " + session.asked_for() + " --case " + std::string(path),
      [&] { return replay(session, path); });
}

Status write_case_file(std::string_view name, std::uint64_t seed, std::string_view path) {
  for (const Case& one : all_cases()) {
    if (one.info.name != name) continue;
    if (!one.build) {
      return Status(StatusCode::invalid_argument,
                    "case " + one.info.name + " is more than one call; it has no file");
    }
    return write_case(one.build(seed), path);
  }
  return Status(StatusCode::invalid_argument,
                "case is \"" + std::string(name) + "\"; it should be a name of the case table");
}

}  // namespace rankfold::conformance
