// Replays a case file, and writes one from the case table.
#include <algorithm>
#include <cmath>
#include <cstdio>

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

// What a file may hold anything for: unspecified parts, and rows of h outside a window of experts,
// which keep what nobody wrote there.
bool is_nobodys(const CallOutput& output, std::size_t i) {
  const Region region = output.expected->region[i];
  return region == Region::unspecified || (region == Region::unchanged && output.name == "h");
}

// The oracle's answer with the exact values of the file in place of its own.
Expected with_values(const CallOutput& output, bool adds, const HostTensor& values) {
  Expected expected = *output.expected;
  for (std::size_t i = 0; i < expected.exact.size(); ++i) {
    if (is_nobodys(output, i)) continue;
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

// Where the contract leaves an output alone or zeroes it, the exact value is no sum: a file that
// expects anything else is wrong, however little.
Judgement judge_untouched(const CallOutput& output, const HostTensor& values) {
  const Expected& oracle = *output.expected;
  for (std::size_t i = 0; i < oracle.region.size(); ++i) {
    const Region region = oracle.region[i];
    if (region == Region::computed || is_nobodys(output, i)) continue;
    const auto at = static_cast<std::int64_t>(i);
    const double value = values.get(at);
    const double wanted = region == Region::zero ? 0.0 : output.before->get(at);
    if (value == wanted || (std::isnan(value) && std::isnan(wanted))) continue;
    char text[256];
    std::snprintf(text, sizeof text,
                  "the file expects %.17g at row %lld, column %lld, where nothing is added to %s; "
                  "it should expect %.17g",
                  value, static_cast<long long>(at / oracle.columns),
                  static_cast<long long>(at % oracle.columns), output.name.c_str(), wanted);
    return {false, text, INFINITY};
  }
  return {};
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
    if (judgement.passed && call.tolerance != testing::Tolerance::relative) {
      judgement = judge_untouched(output, values);
    }
    if (!judgement.passed) return judgement;
    return testing::judge(with_values(output, adds_to(call, output.name), values), before, got,
                          call.tolerance, call.relative_tolerance);
  }
  for (std::int64_t i = 0; i < values.count(); ++i) {
    const HostTensor& wanted = is_nobodys(output, static_cast<std::size_t>(i)) ? before : values;
    if (oracle.region[static_cast<std::size_t>(i)] == Region::unspecified) continue;
    if (got.same_bits(i, wanted)) continue;
    return {false,
            "element " + std::to_string(i) + " is " + std::to_string(got.get(i)) + ", expected " +
                std::to_string(wanted.get(i)) + " bit for bit",
            INFINITY};
  }
  return {};
}

// One array of group_tokens, where it is defined. `whole`: a file may also hold what the operation
// leaves unspecified behind that, and nobody compares it.
Outcome judge_part(const std::string& name, const HostTensor& wanted, const HostTensor& got,
                   std::int64_t defined, std::int64_t whole) {
  const auto text = [](const HostTensor& tensor, std::int64_t i) {
    return std::to_string(static_cast<std::int64_t>(tensor.get(i)));
  };
  for (std::int64_t i = 0; i < std::min(wanted.count(), defined); ++i) {
    if (wanted.same_bits(i, got)) continue;
    return Outcome::fail(name + "[" + std::to_string(i) + "] is " + text(got, i) + ", expected " +
                         text(wanted, i));
  }
  if (wanted.count() == defined || wanted.count() == whole) return {};
  return Outcome::fail("expect." + name + " has " + std::to_string(wanted.count()) +
                       " elements, the operation defines " + std::to_string(defined));
}

Outcome judge_grouping(const HostCall& call, const CallOutcome& outcome) {
  // Without rows nothing is made, which says the same as these.
  const bool none = call.addressing.num_tokens == 0;
  const HostTensor zero(DType::i32, {1});
  const HostTensor& num_segments = none ? zero : outcome.num_segments;
  const HostTensor& offsets = none ? zero : outcome.segment_offsets;
  const auto segments = static_cast<std::int64_t>(num_segments.get(0));
  if (segments < 0 || segments >= offsets.count()) {
    return Outcome::fail("num_segments is " + std::to_string(segments) + ", there is room for " +
                         std::to_string(offsets.count() - 1));
  }
  const auto rows = static_cast<std::int64_t>(offsets.get(segments));
  if (rows < 0 || rows > call.addressing.num_tokens) {
    return Outcome::fail("segment_offsets[" + std::to_string(segments) + "] is " +
                         std::to_string(rows) + ", there are " +
                         std::to_string(call.addressing.num_tokens) + " rows");
  }
  for (const auto& [name, wanted] : call.expect) {
    const Outcome part =
        name == "token_order" ? judge_part(name, wanted, outcome.token_order, rows, rows)
        : name == "segment_offsets"
            ? judge_part(name, wanted, offsets, segments + 1, offsets.count())
        : name == "segment_slots"
            ? judge_part(name, wanted, outcome.segment_slots, segments, offsets.count() - 1)
            : judge_part(name, wanted, num_segments, 1, 1);
    if (!part.passed()) return part;
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
  if (call.op == Op::group_tokens) {
    result = judge_grouping(call, outcome);
    if (!result.passed()) result.message = where + result.message;
    return result;
  }
  for (const CallOutput& output : outputs_of(filled, outcome)) {
    const auto expected = call.expect.find(output.name);
    if (expected == call.expect.end()) continue;
    if (output.expected->exact.size() != static_cast<std::size_t>(expected->second.count())) {
      return Outcome::fail(where + "the call was taken, though its shapes do not go together");
    }
    const Judgement judgement = judge_values(file, output, expected->second);
    result.max_error = std::max(result.max_error, judgement.max_error);
    if (!judgement.passed) {
      result.verdict = Verdict::failed;
      result.message = where + output.name + ": " + judgement.message;
      return result;
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
  if (computes && shapes_fit(file->call)) filled.oracle = testing::compute(file->call);
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
