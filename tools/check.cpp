// rankfold check: the conformance cases on this machine, or one case file.
#include <charconv>

#include "command.hpp"
#include "conformance.hpp"
#include "rankfold/safetensors.hpp"
#include "rankfold/version.hpp"

namespace rankfold::tools {
namespace {

using conformance::CaseInfo;
using conformance::CaseResult;
using conformance::Summary;
using conformance::Verdict;

// The reader of stdout has gone: nobody waits for the remaining cases.
struct OutputClosed {};

std::uint64_t read_seed(const std::string& text) {
  if (text.empty()) {
    const Result<std::uint64_t> seed = conformance::default_seed();
    if (!seed.ok()) throw CommandError(kExitUsage, describe(seed.status()));
    return *seed;
  }
  std::uint64_t seed = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, seed);
  if (error != std::errc() || rest != end) {
    throw CommandError(
        kExitUsage, fmt::format("--seed: \"{}\" is no decimal number below 2^64", printable(text)));
  }
  return seed;
}

std::vector<CaseInfo> select(const std::string& filter) {
  Result<std::vector<CaseInfo>> cases = conformance::select_cases(filter);
  if (!cases.ok()) throw CommandError(kExitUsage, "--filter: " + describe(cases.status()));
  if (cases->empty()) {
    throw CommandError(kExitUsage, fmt::format("--filter: \"{}\" is found in the name of no case; "
                                               "`rankfold check --list` shows them",
                                               printable(filter)));
  }
  return std::move(*cases);
}

int list_cases(const CheckOptions& options, Output& out) {
  const std::vector<CaseInfo> cases = select(options.filter);
  if (options.json) {
    Json lines = Json::array();
    for (const CaseInfo& info : cases) {
      lines.push_back({{"name", info.name}, {"about", info.about}, {"slow", info.slow}});
    }
    out.write_json({{"version", version()}, {"cases", std::move(lines)}});
    return kExitOk;
  }
  std::vector<std::vector<std::string>> rows;
  rows.reserve(cases.size());
  for (const CaseInfo& info : cases) rows.push_back({info.name, info.about});
  out.write(table(rows));
  return kExitOk;
}

// A file that is not there or breaks its format is no failed case.
void check_case_file(const std::string& path) {
  const Status status = Safetensors::read(path).status();
  if (status.ok()) return;
  const bool malformed = status.code() == StatusCode::malformed_file;
  throw CommandError(malformed ? kExitRefused : kExitUsage, describe(status));
}

void print_result(const CaseResult& result, Output& out) {
  const std::string name = printable(result.name);
  switch (result.verdict) {
    case Verdict::passed:
      out.print("{}  {}\n", out.green("passed "), name);
      break;
    case Verdict::skipped:
      out.print("{}  {}: {}\n", out.yellow("skipped"), name, printable(result.message));
      break;
    case Verdict::failed:
      out.print("{}  {}: {}\n", out.red("FAILED "), name, printable(result.message));
      if (!result.repeat.empty()) out.print("         repeat: {}\n", printable(result.repeat));
      break;
  }
  out.flush();
  if (out.closed()) throw OutputClosed{};
}

Json result_json(const CaseResult& result) {
  Json json = {{"name", result.name},       {"verdict", conformance::to_string(result.verdict)},
               {"message", result.message}, {"max_error", result.max_error},
               {"seconds", result.seconds}, {"digest", fmt::format("{:016x}", result.digest)}};
  if (!result.repeat.empty()) json["repeat"] = result.repeat;
  return json;
}

void add_to(Summary& summary, Verdict verdict) {
  summary.passed += verdict == Verdict::passed ? 1 : 0;
  summary.failed += verdict == Verdict::failed ? 1 : 0;
  summary.skipped += verdict == Verdict::skipped ? 1 : 0;
}

}  // namespace

int run_check(const CheckOptions& options, Output& out) {
  if (options.list) return list_cases(options, out);
  conformance::RunOptions run;
  run.seed = read_seed(options.seed);
  if (options.case_file.empty() && options.drawn == 0) {
    (void)select(options.filter);
  } else if (!options.case_file.empty()) {
    check_case_file(options.case_file);
  }
  LoraBackend& backend = select_backend(options.backend);
  run.backend_name = options.backend;
  if (!options.json) {
    out.print("{}:{}, seed {}\n", backend.name(), backend.device().index, run.seed);
  }

  Summary summary;
  Json lines = Json::array();
  const auto report = [&](const CaseResult& result) {
    add_to(summary, result.verdict);
    if (options.json) {
      lines.push_back(result_json(result));
    } else {
      print_result(result, out);
    }
  };
  try {
    if (!options.case_file.empty()) {
      report(conformance::run_case_file(backend, options.case_file, run));
    } else if (options.drawn > 0) {
      (void)conformance::run_drawn_cases(backend, options.first, options.drawn, run, report);
    } else {
      const Result<Summary> all = conformance::run_cases(backend, options.filter, run, report);
      if (!all.ok()) throw CommandError(kExitUsage, describe(all.status()));
    }
  } catch (const OutputClosed&) {
    return kExitFailure;  // not all of it was run
  }
  if (options.json) {
    out.write_json(
        {{"version", version()},
         {"backend", fmt::format("{}:{}", backend.name(), backend.device().index)},
         {"seed", run.seed},
         {"cases", std::move(lines)},
         {"summary",
          {{"passed", summary.passed}, {"failed", summary.failed}, {"skipped", summary.skipped}}}});
  } else {
    out.print("\n{} passed, {} failed, {} skipped\n", summary.passed, summary.failed,
              summary.skipped);
  }
  return summary.failed == 0 ? kExitOk : kExitFailure;
}

}  // namespace rankfold::tools
