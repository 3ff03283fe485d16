// rankfold bench: which points are run, and where the results go.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>

#include "command.hpp"
#include "name_filter.hpp"
#include "rankfold/memory.hpp"
#include "rankfold/operations.hpp"
#include "report.hpp"

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

// Peers were measured on a GPU; beside a CPU they say nothing.
std::optional<Peers> choose_peers(const BenchOptions& options, const LoraBackend& backend) {
  if (!options.peers.empty()) return read_peers(options.peers);
  if (backend.device().type == DeviceType::cpu) return std::nullopt;
  const std::string path = find_shared_file("peers-h200.json");
  if (path.empty()) return std::nullopt;
  return read_peers(path);
}

// Where the device's own rate could not be measured, that of the peers' machine stands in.
void complete(Yardsticks& yardsticks, const std::optional<Peers>& peers) {
  if (yardsticks.matrix_flops_per_second.has_value() || !peers.has_value()) return;
  yardsticks.matrix_flops_per_second = peers->matrix_flops_per_second;
  yardsticks.matrix_source = fmt::format("of the peers' {}, not measured here: {}", peers->device,
                                         yardsticks.matrix_source);
}

void write_json(const Json& document, std::FILE* file, Output& out) {
  if (file == nullptr) return out.write_json(document);
  Output file_out(file);
  file_out.write_json(document);
  if (file_out.finish(kExitOk) != kExitOk) {
    throw CommandError(kExitFailure, "--json: the results could not be written");
  }
}

}  // namespace

int run_bench(const BenchOptions& options, Output& out) {
  const Workloads workloads =
      read_workloads(options.workloads.empty() ? default_workloads_path() : options.workloads);
  const std::vector<Workload> points = select(workloads, options.filter);
  const std::unique_ptr<std::FILE, Close> json_file = open_json(options.json);
  LoraBackend& backend = select_backend(options.backend);
  // With JSON on stdout the table goes where a reader still sees it.
  Output error_out(stderr);
  Output& lines = options.json == "-" ? error_out : out;

  Result<OwnedStream> stream = OwnedStream::create(backend);
  if (!stream.ok()) throw CommandError(kExitUsage, describe(stream.status()));
  const std::optional<Peers> peers = choose_peers(options, backend);
  const std::unique_ptr<DeviceTimer> timer = make_device_timer(backend, *stream);
  Patterns patterns(backend);
  Bench bench{backend, *stream, *timer, patterns, machine_limits(backend), {}};
  bench.yardsticks = timer->yardsticks(bench.limits);
  complete(bench.yardsticks, peers);
  RunInfo info{workloads.path, peers.has_value() ? &*peers : nullptr, false, timer->versions()};
  print_head(bench, info, lines);
  std::vector<PointResult> results;
  for (const Workload& point : points) {
    results.push_back(run_point(bench, point, options.sweep));
    print_point(results.back(), bench, info, lines);
    if (lines.closed() && !json_file) return kExitFailure;  // nobody waits for the rest
  }
  print_summary(results, bench, info, lines);
  if (!options.json.empty()) write_json(bench_json(bench, info, results), json_file.get(), out);
  const bool failed = std::any_of(results.begin(), results.end(), [](const PointResult& result) {
    return result.outcome == PointResult::Outcome::failed;
  });
  return failed ? kExitFailure : kExitOk;
}

}  // namespace rankfold::tools
