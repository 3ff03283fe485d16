#include "check_call.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tolerance.hpp"

namespace rankfold::conformance {

using testing::HostCall;
using testing::HostTensor;
using testing::Judgement;

const std::vector<Strategy>& forced_strategies() {
  static const std::vector<Strategy> strategies = [] {
    std::vector<Strategy> all;
    for (int i = 1; i < kNumStrategies; ++i) all.push_back(static_cast<Strategy>(i));
    return all;
  }();
  return strategies;
}

namespace {

std::uint64_t digest_bytes(const HostTensor& tensor, std::uint64_t hash) {
  for (const std::byte byte : tensor.bytes) {
    hash = (hash ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3u;
  }
  return hash;
}

// h has unspecified parts, which two runs may fill differently.
HostTensor defined_part(const testing::Expected& expected, HostTensor h) {
  for (std::size_t i = 0; i < expected.region.size(); ++i) {
    if (expected.region[i] == testing::Region::unspecified) h.set(static_cast<std::int64_t>(i), 0);
  }
  return h;
}

Outcome from(const Judgement& judgement, const std::string& where, const std::string& output) {
  Outcome outcome;
  outcome.max_error = judgement.max_error;
  if (!judgement.passed) {
    outcome.verdict = Verdict::failed;
    outcome.message = where + output + ": " + judgement.message;
  }
  return outcome;
}

Outcome judge_grouping(const HostCall& call, const CallOutcome& outcome, const std::string& where) {
  testing::HostAddressing exact = call.addressing;
  testing::group_on_host(exact, call.shape.num_slots);
  if (call.addressing.num_tokens == 0) return {};
  const auto segments = static_cast<std::int64_t>(exact.num_segments);
  const auto check = [&](const char* name, const std::vector<std::int32_t>& wanted,
                         const HostTensor& got, std::int64_t defined) -> std::string {
    for (std::int64_t i = 0; i < defined; ++i) {
      const double value = i < got.count() ? got.get(i) : NAN;
      if (value != wanted[static_cast<std::size_t>(i)]) {
        return where + name + "[" + std::to_string(i) + "] is " + std::to_string(value) +
               ", expected " + std::to_string(wanted[static_cast<std::size_t>(i)]);
      }
    }
    return {};
  };
  const std::int64_t rows = exact.segment_offsets[static_cast<std::size_t>(segments)];
  for (const std::string& message :
       {check("num_segments", {exact.num_segments}, outcome.num_segments, 1),
        check("segment_offsets", exact.segment_offsets, outcome.segment_offsets, segments + 1),
        check("segment_slots", exact.segment_slots, outcome.segment_slots, segments),
        check("token_order", exact.token_order, outcome.token_order, rows)}) {
    if (!message.empty()) return Outcome::fail(message);
  }
  return {};
}

bool same_bytes(const HostTensor& a, const HostTensor& b) {
  return a.bytes.size() == b.bytes.size() &&
         (a.bytes.empty() || std::memcmp(a.bytes.data(), b.bytes.data(), a.bytes.size()) == 0);
}

Outcome judge_refusal(const FilledCall& filled, const CallOutcome& outcome, StatusCode wanted,
                      const std::string& where) {
  if (outcome.status.code() != wanted) {
    return Outcome::fail(where + "the call returned " + to_string(outcome.status.code()) + " (" +
                         outcome.status.message() + "), expected " + to_string(wanted));
  }
  if (outcome.status.message()[0] == '\0') return Outcome::fail(where + "refused without a reason");
  if (!outcome.damage.empty()) return Outcome::fail(where + outcome.damage);
  for (const CallOutput& output : outputs_of(filled, outcome)) {
    if (!same_bytes(*output.got, *output.before)) {
      return Outcome::fail(where + output.name + " was written by a refused call");
    }
  }
  return {};
}

// Runs the call with one strategy on one stream.
CallOutcome run_once(Session& session, const HostCall& call, Strategy strategy, Stream stream) {
  DeviceCall device(session.backend(), call);
  CallOptions options = call.options;
  options.strategy = strategy;
  Status status = device.prepare(stream, {strategy});
  if (status.ok()) status = device.run(stream, options);
  CallOutcome outcome = device.collect(stream);
  if (!status.ok()) outcome.status = status;
  return outcome;
}

bool accepts(Session& session, const HostCall& call, Strategy strategy) {
  Problem problem = DeviceCall(session.backend(), call).problem();
  problem.options.strategy = strategy;
  return supports(session.backend(), problem).ok();
}

}  // namespace

std::uint64_t digest_of(const CallOutcome& outcome, std::uint64_t seed) {
  for (const HostTensor* tensor : {&outcome.y, &outcome.h, &outcome.dx, &outcome.ds}) {
    seed = digest_bytes(*tensor, seed);
  }
  for (const auto* gradients : {&outcome.da, &outcome.db, &outcome.dbias}) {
    for (const HostTensor& gradient : *gradients) seed = digest_bytes(gradient, seed);
  }
  return seed;
}

std::vector<CallOutput> outputs_of(const FilledCall& filled, const CallOutcome& outcome) {
  const HostCall& call = filled.call;
  const testing::OracleResult& oracle = filled.oracle;
  std::vector<CallOutput> outputs;
  if (testing::makes_y(call.op)) outputs.push_back({"y", &oracle.y, &call.y, &outcome.y});
  if (testing::makes_h(call.op)) outputs.push_back({"h", &oracle.h, &call.h, &outcome.h});
  if (!testing::is_backward(call.op)) return outputs;
  if (call.dx.given()) outputs.push_back({"dx", &oracle.dx, &call.dx, &outcome.dx});
  if (call.ds.given()) outputs.push_back({"ds", &oracle.ds, &call.ds, &outcome.ds});
  // Refused calls have no oracle, failed ones no outputs.
  static const testing::Expected kNoExpected;
  static const HostTensor kNoTensor;
  const auto expected = [](const std::vector<testing::Expected>& all, std::size_t e) {
    return e < all.size() ? &all[e] : &kNoExpected;
  };
  const auto got = [](const std::vector<HostTensor>& all, std::size_t e) {
    return e < all.size() ? &all[e] : &kNoTensor;
  };
  for (std::size_t e = 0; e < call.gradients.size(); ++e) {
    const testing::HostGradient& gradient = call.gradients[e];
    const std::string at = testing::entry_name(call, e);
    if (gradient.da.given()) {
      outputs.push_back({"da." + at, expected(oracle.da, e), &gradient.da, got(outcome.da, e)});
    }
    if (gradient.db.given()) {
      outputs.push_back({"db." + at, expected(oracle.db, e), &gradient.db, got(outcome.db, e)});
    }
    if (gradient.dbias.given()) {
      outputs.push_back(
          {"dbias." + at, expected(oracle.dbias, e), &gradient.dbias, got(outcome.dbias, e)});
    }
  }
  return outputs;
}

Outcome judge_outcome(const FilledCall& filled, const CallOutcome& outcome,
                      const std::string& where) {
  const HostCall& call = filled.call;
  if (call.expect_status.has_value()) {
    return judge_refusal(filled, outcome, *call.expect_status, where);
  }
  if (!outcome.status.ok()) {
    return Outcome::fail(where + "the call returned " + to_string(outcome.status.code()) + ": " +
                         outcome.status.message());
  }
  if (!outcome.damage.empty()) return Outcome::fail(where + outcome.damage);
  if (call.op == Op::group_tokens) return judge_grouping(call, outcome, where);
  Outcome result;
  for (const CallOutput& output : outputs_of(filled, outcome)) {
    const Outcome judged = from(testing::judge(*output.expected, *output.before, *output.got,
                                               call.tolerance, call.relative_tolerance),
                                where, output.name);
    if (!judged.passed()) return judged;
    result.max_error = std::max(result.max_error, judged.max_error);
  }
  return result;
}

namespace {

// Columns of y and dy by the table, of h by the ranks.
bool columns_fit(const HostCall& call) {
  std::int64_t total = 0;
  const HostTensor& wide = call.y.given() ? call.y : call.dy;
  for (int slice = 0; wide.given() && slice < call.shape.num_slices; ++slice) {
    const std::int64_t width = call.shape.out[slice];
    if (width < 1 || width > wide.columns() - total) return false;
    total += width;
  }
  return (!wide.given() || total == wide.columns()) &&
         (!call.h.given() ||
          call.h.columns() == std::int64_t{call.shape.num_slices} * call.shape.max_rank);
}

// Whether every row has a token where the routing asks for one.
bool tokens_fit(const HostCall& call) {
  const testing::HostExperts& experts = call.experts;
  if (!testing::is_experts(call.op)) return true;
  if (experts.mode == ExpertMode::gather) {
    return experts.top_k > 0 && experts.num_rows == call.addressing.num_tokens * experts.top_k;
  }
  return !experts.row_tokens.empty() || experts.num_rows == 0 ||
         (experts.x_rows == XRows::own && call.addressing.token_slots.empty() &&
          call.addressing.token_weights.empty());
}

}  // namespace

bool shapes_fit(const HostCall& call) {
  const std::int64_t tokens = call.addressing.num_tokens;
  const std::int64_t rows = testing::num_rows(call);
  const auto fits = [rows](const HostTensor& tensor) {
    return !tensor.given() || tensor.rows() == rows;
  };
  const bool of_tokens = testing::is_experts(call.op) && call.experts.x_rows == XRows::token;
  const std::int64_t x_rows = of_tokens ? tokens : rows;
  const bool x_fits = !call.x.given() ||
                      (call.x_row_stride == 0 ? call.x.rows() >= std::min<std::int64_t>(x_rows, 1)
                                              : call.x.rows() == x_rows);
  return columns_fit(call) && tokens_fit(call) && x_fits && fits(call.ids) && fits(call.h) &&
         fits(call.y) && fits(call.dy) && fits(call.dx) && fits(call.ds);
}

Outcome check_call(Session& session, const FilledCall& filled, bool sweep, const Judge& judge) {
  std::vector<Strategy> strategies = {filled.call.options.strategy};
  if (sweep && filled.call.op != Op::group_tokens && !filled.call.expect_status.has_value()) {
    strategies.insert(strategies.end(), forced_strategies().begin(), forced_strategies().end());
  }
  Outcome result;
  for (const Strategy strategy : strategies) {
    const bool own = strategy == filled.call.options.strategy;
    FilledCall refused;
    const bool declined = !own && !accepts(session, filled.call, strategy);
    if (declined) {
      refused.call = filled.call;
      refused.call.expect_status = StatusCode::unsupported;
    }
    std::uint64_t digest = 0;
    bool first = true;
    for (NamedStream& named : session.streams()) {
      const std::string where = named.name + " stream, strategy " + to_string(strategy) + ", ";
      CallOutcome outcome =
          run_once(session, declined ? refused.call : filled.call, strategy, named.stream.get());
      Outcome judged = declined ? judge_outcome(refused, outcome, where)
                       : judge  ? judge(outcome, where)
                                : judge_outcome(filled, outcome, where);
      result.max_error = std::max(result.max_error, judged.max_error);
      if (!judged.passed()) {
        judged.max_error = result.max_error;
        return judged;
      }
      outcome.h = defined_part(filled.oracle.h, std::move(outcome.h));
      outcome.ds = defined_part(filled.oracle.ds, std::move(outcome.ds));
      const std::uint64_t bits = digest_of(outcome);
      if (!first && bits != digest) {
        return Outcome::fail(where + "other bits than on the " + session.streams().front().name +
                             " stream");
      }
      digest = bits;
      first = false;
      // A refused call does nothing that a second stream could show.
      if (declined) break;
    }
    if (!declined) result.digest = (result.digest ^ digest) * 0x100000001b3u;
  }
  return result;
}

}  // namespace rankfold::conformance
