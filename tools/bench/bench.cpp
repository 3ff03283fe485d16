// rankfold bench: which points are run, and where the results go.
#include <algorithm>
#include <memory>
#include <optional>

#include "command.hpp"
#include "extra_checks.hpp"
#include "off_grid.hpp"
#include "rankfold/memory.hpp"
#include "render.hpp"
#include "report.hpp"
#include "select_points.hpp"
#include "tuning.hpp"

namespace rankfold::tools {
namespace {

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

Json checks_json(const std::vector<ExtraCheck>& checks) {
  Json lines = Json::array();
  for (const ExtraCheck& check : checks) {
    Json line = {{"name", check.name},
                 {"what", check.what},
                 {"value", check.value},
                 {"limit", check.limit},
                 {"met", check.met()}};
    if (!check.failure.empty()) line["failure"] = check.failure;
    lines.push_back(std::move(line));
  }
  return lines;
}

void print_checks(const std::vector<ExtraCheck>& checks, Output& out) {
  if (checks.empty()) return out.write("\nno checks: they are for devices with graphs\n");
  out.write("\n");
  for (const ExtraCheck& check : checks) {
    out.print("{:<44}{:>9.2f} of at most {:<6g}{:<5}{}\n", check.name, check.value, check.limit,
              check.met() ? "yes" : "NO",
              printable(check.failure.empty() ? check.what : check.failure));
  }
}

Workloads choose_workloads(const BenchOptions& options) {
  if (!options.off_grid) {
    return read_workloads(options.workloads.empty() ? default_workloads_path() : options.workloads);
  }
  return {fmt::format("{} points off the grid", kNumOffGrid), off_grid_points()};
}

// Empty: RANKFOLD_TUNING is not set. What is wrong with its file, making the backend has said.
std::string describe_tuning(const LoraBackend& backend) {
  const TuningUse use = tuning_use(list_backends());
  for (const TuningUse::Device& device : use.devices) {
    const bool same = !device.reads || device.index == backend.device().index;
    if (device.backend == backend.name() && same)
      return fmt::format("{}: {}", use.path, TuningUse::describe(device));
  }
  return use.path;
}

// Everything that goes to files and stdout beside the table.
struct Sinks {
  File json;
  File markdown;
};

int measure(const BenchOptions& options, const Sinks& sinks, Output& out) {
  const Workloads workloads = choose_workloads(options);
  const std::vector<Workload> points = select_points(workloads, options.filter);
  LoraBackend& backend = select_backend(options.backend);
  // With JSON on stdout the table goes where a reader still sees it.
  Output error_out(stderr);
  Output& lines = options.json == "-" ? error_out : out;

  Result<OwnedStream> stream = OwnedStream::create(backend);
  if (!stream.ok()) throw CommandError(kExitUsage, describe(stream.status()));
  const std::optional<Peers> peers = choose_peers(options, backend);
  const std::unique_ptr<DeviceTimer> timer = make_device_timer(backend, *stream);
  Patterns patterns(backend);
  Bench bench{backend, *stream, *timer, patterns, machine_limits(backend, timer->cache_bytes()),
              {}};
  bench.yardsticks = timer->yardsticks(bench.limits);
  complete(bench.yardsticks, peers);
  const Peers* const shown = peers.has_value() && !options.off_grid ? &*peers : nullptr;
  const RunInfo info{workloads.path, shown, options.off_grid, timer->versions(),
                     describe_tuning(backend)};
  print_head(bench, info, lines);
  std::vector<PointResult> results;
  for (const Workload& point : points) {
    results.push_back(run_point(bench, point, options.sweep));
    print_point(results.back(), bench, info, lines);
    if (lines.closed() && !sinks.json) return kExitFailure;  // nobody waits for the rest
  }
  print_summary(results, bench, info, lines);
  Json document = bench_json(bench, info, results);
  if (options.checks) {
    const std::vector<ExtraCheck> checks = run_extra_checks(bench);
    print_checks(checks, lines);
    document["checks"] = checks_json(checks);
  }
  if (!options.json.empty()) write_json(document, sinks.json.get(), out);
  if (sinks.markdown) write_markdown({document}, sinks.markdown.get());
  if (!options.figures.empty()) write_figures({document}, options.figures);
  const bool failed = std::any_of(results.begin(), results.end(), [](const PointResult& result) {
    return result.outcome == PointResult::Outcome::failed ||
           std::any_of(result.variants.begin(), result.variants.end(),
                       [](const Variant& variant) { return variant.wrong; });
  });
  return failed ? kExitFailure : kExitOk;
}

}  // namespace

int run_bench(const BenchOptions& options, Output& out) {
  const Sinks sinks{open_output("--json", options.json),
                    open_output("--markdown", options.markdown)};
  if (options.from.empty()) return measure(options, sinks, out);
  const std::vector<Json> documents = read_results(options.from);
  if (sinks.markdown) write_markdown(documents, sinks.markdown.get());
  if (!options.figures.empty()) write_figures(documents, options.figures);
  return kExitOk;
}

}  // namespace rankfold::tools
