// rankfold bench: which points are run, and where the results go.
#include <cerrno>
#include <cstring>
#include <memory>

#include "command.hpp"
#include "name_filter.hpp"
#include "rankfold/memory.hpp"
#include "rankfold/operations.hpp"
#include "report.hpp"
#include "serve_point.hpp"

namespace rankfold::tools {
namespace {

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

std::vector<Workload> select(const Workloads& workloads, const std::string& filter) {
  const auto names = conformance::NameFilter::compile(filter);
  if (!names.ok()) throw CommandError(kExitUsage, "--filter: " + describe(names.status()));
  std::vector<Workload> selected;
  for (const Workload& point : workloads.points) {
    if (names->finds(point.name)) selected.push_back(point);
  }
  if (selected.empty()) {
    throw CommandError(kExitUsage,
                       fmt::format("--filter: \"{}\" is found in none of the {} points of {}",
                                   printable(filter), workloads.points.size(), workloads.path));
  }
  return selected;
}

// Points that this command does not time, with what the backend says of their operation.
PointResult skip(const LoraBackend& backend, const Workload& point, DType dtype) {
  PointResult result;
  result.name = point.name;
  result.kind = point.kind == Workload::Kind::moe ? "moe" : "train";
  result.min_bytes = point.min_bytes;
  result.flops = point.flops;
  const Problem problem = problem_of(point, dtype);
  const Result<Strategy> strategy = supports(backend, problem);
  result.reason = strategy.ok()
                      ? fmt::format("{} is in this backend; bench times serve points alone",
                                    to_string(problem.op))
                      : describe(strategy.status());
  return result;
}

PointResult run_point(LoraBackend& backend, const Workloads& workloads, const Workload& point,
                      const MachineLimits& limits, const Yardsticks& yardsticks, bool sweep) {
  if (point.kind != Workload::Kind::serve) return skip(backend, point, workloads.dtype);
  return run_serve_point(backend, workloads, point, limits, yardsticks, sweep);
}

int count(const std::vector<PointResult>& results, PointResult::Outcome outcome) {
  return static_cast<int>(std::count_if(results.begin(), results.end(), [&](const auto& result) {
    return result.outcome == outcome;
  }));
}

// Before anything is timed: a result that cannot be written is lost after minutes.
std::unique_ptr<std::FILE, Close> open_json(const std::string& path) {
  if (path.empty() || path == "-") return nullptr;
  std::unique_ptr<std::FILE, Close> file(std::fopen(path.c_str(), "wb"));
  if (!file) {
    throw CommandError(kExitUsage,
                       fmt::format("--json: {} cannot be written: {}", path, std::strerror(errno)));
  }
  return file;
}

Yardsticks measure(LoraBackend& backend, const MachineLimits& limits) {
  Result<OwnedStream> stream = OwnedStream::create(backend);
  if (!stream.ok()) throw CommandError(kExitUsage, describe(stream.status()));
  return measure_yardsticks(backend, *stream, limits);
}

}  // namespace

int run_bench(const BenchOptions& options, Output& out) {
  using Outcome = PointResult::Outcome;
  const Workloads workloads =
      read_workloads(options.workloads.empty() ? default_workloads_path() : options.workloads);
  const std::vector<Workload> points = select(workloads, options.filter);
  const std::unique_ptr<std::FILE, Close> json_file = open_json(options.json);
  LoraBackend& backend = select_backend(options.backend);
  // With JSON on stdout the table goes where a reader still sees it.
  Output error_out(stderr);
  Output& lines = options.json == "-" ? error_out : out;

  const MachineLimits limits = machine_limits(backend);
  const Yardsticks yardsticks = measure(backend, limits);
  print_head(backend, workloads, limits, yardsticks, lines);
  std::vector<PointResult> results;
  for (const Workload& point : points) {
    results.push_back(run_point(backend, workloads, point, limits, yardsticks, options.sweep));
    print_point(results.back(), lines);
    if (lines.closed() && !json_file) return kExitFailure;  // nobody waits for the rest
  }
  const int failed = count(results, Outcome::failed);
  lines.print("\n{} timed, {} failed, {} skipped\n", count(results, Outcome::timed), failed,
              count(results, Outcome::skipped));
  if (!options.json.empty()) {
    const Json document = bench_json(backend, workloads, limits, yardsticks, results);
    if (json_file) {
      Output file_out(json_file.get());
      file_out.write_json(document);
      if (file_out.finish(kExitOk) != kExitOk) return kExitFailure;
    } else {
      out.write_json(document);
    }
  }
  return failed == 0 ? kExitOk : kExitFailure;
}

}  // namespace rankfold::tools
