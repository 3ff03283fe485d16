// rankfold tune: every configuration at each shape, and a file of those that beat the built-in
// choice.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>

#include "command.hpp"
#include "must.hpp"
#include "rankfold/version.hpp"
#include "render.hpp"
#include "report.hpp"
#include "select_points.hpp"
#include "tuning.hpp"
#include "variants.hpp"
#include "workloads.hpp"

namespace rankfold::tools {
namespace {

namespace fs = std::filesystem;

constexpr double kMicro = 1e6;
// Less than this share of the built-in choice's time is taken for noise.
constexpr double kLeastGain = 0.02;
// A strategy whose first configuration takes longer than this many times the built-in choice is
// left out.
constexpr double kHopeless = 1.5;
// The fastest ones are timed again, in turn with the built-in choice.
constexpr std::size_t kMostContenders = 4;
constexpr Effort kEffort{.most_replays = 25, .least_replays = 5, .seconds = 0.5};

// A file that takes its name when it is whole: a reader never sees half of one.
class NewFile {
 public:
  explicit NewFile(const std::string& path)
      : path_(path), written_(fmt::format("{}.{}.new", path, getpid())) {
    std::error_code error;
    if (fs::exists(path_, error) && !fs::is_regular_file(path_, error)) {
      throw CommandError(kExitUsage, fmt::format("-o: {} is there and not a regular file", path_));
    }
    file_.reset(std::fopen(written_.c_str(), "wbx"));
    if (!file_) fail(kExitUsage);
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile() {
    if (!written_.empty()) std::remove(written_.c_str());
  }
  void write(const std::string& text) {
    bool ok = std::fwrite(text.data(), 1, text.size(), file_.get()) == text.size();
    ok = std::fclose(file_.release()) == 0 && ok;
    if (!ok || std::rename(written_.c_str(), path_.c_str()) != 0) fail(kExitFailure);
    written_.clear();
  }

 private:
  [[noreturn]] void fail(int exit_code) const {
    const int error = errno;
    throw CommandError(exit_code,
                       fmt::format("-o: {} cannot be written: {}", path_, std::strerror(error)));
  }
  std::string path_;
  std::string written_;
  File file_;
};

// What was measured at one point.
struct TunedPoint {
  std::string name;
  std::string key;
  std::string built_in;  // "grouped: default"
  double built_in_seconds = 0;
  std::map<std::string, double> ratios;  // of a choice's time to the built-in one's, by its text
  std::string failure;
  std::string skipped;
};

std::string text_of(const std::string& strategy, const std::string& configuration) {
  return fmt::format("{}: {}", strategy, configuration);
}

std::string key_of(const Problem& problem) {
  char text[1024];
  if (write_tuning_key(problem, text, sizeof(text)) >= sizeof(text)) return {};
  return text;
}

// The fastest again, so that what was only lucky is found out.
void time_contenders(Bench& bench, ColdLayers& cold, const Layers& built_in,
                     std::vector<Variant> variants, TunedPoint& point) {
  const double limit = point.built_in_seconds;
  variants.erase(std::remove_if(variants.begin(), variants.end(),
                                [&](const Variant& variant) {
                                  return !variant.refusal.empty() || variant.time.median >= limit;
                                }),
                 variants.end());
  std::stable_sort(variants.begin(), variants.end(), [](const Variant& a, const Variant& b) {
    return a.time.median < b.time.median;
  });
  if (variants.size() > kMostContenders) variants.resize(kMostContenders);
  if (variants.empty()) return;
  cold.restore();
  std::vector<std::unique_ptr<Layers>> calls;
  std::vector<std::unique_ptr<Recording>> recordings;
  calls.reserve(variants.size());
  recordings.reserve(variants.size() + 1);
  recordings.push_back(bench.timer.record([&] { built_in.apply_all(); }));
  for (const Variant& variant : variants) {
    calls.push_back(std::make_unique<Layers>(bench, cold, variant.options));
    recordings.push_back(
        bench.timer.record([layers = calls.back().get()] { layers->apply_all(); }));
  }
  std::vector<Recording*> pointers;
  pointers.reserve(recordings.size());
  for (const auto& recording : recordings) pointers.push_back(recording.get());
  std::vector<std::vector<double>> seconds = bench.timer.replay(pointers, kEffort);
  point.built_in_seconds = summarize(std::move(seconds[0]), cold.size()).median;
  for (std::size_t i = 0; i < variants.size(); ++i) {
    point.ratios[text_of(variants[i].strategy, variants[i].configuration)] =
        summarize(std::move(seconds[i + 1]), cold.size()).median / point.built_in_seconds;
  }
}

void measure(Bench& bench, const Workload& workload, Step::Form form, int num_layers,
             TunedPoint& point) {
  Step step(bench.backend, bench.stream, workload, form);
  ColdLayers cold(bench.backend, bench.stream, bench.patterns, workload, step, num_layers);
  const Layers built_in(bench, cold, {});
  const Op op = built_in.problem().op;
  point.key = key_of(built_in.problem());
  point.built_in = text_of(to_string(built_in.choice().strategy),
                           configuration_name(bench.backend, op, built_in.choice()));
  const ExactSamples samples(bench.patterns, workload, cold.layout());
  int checked = 0;
  point.failure = check_layers(bench, samples, cold, built_in, checked);
  if (!point.failure.empty()) return;
  const auto recording = bench.timer.record([&] { built_in.apply_all(); });
  point.built_in_seconds = bench.timer.time(*recording, cold.size(), kEffort).median;
  const std::vector<Variant> variants =
      run_variants(bench, samples, cold, op, kHopeless * point.built_in_seconds);
  for (const Variant& variant : variants) {
    const std::string text = text_of(variant.strategy, variant.configuration);
    if (variant.wrong) point.failure = text + ": " + variant.refusal;
    if (!variant.refusal.empty() || text == point.built_in) continue;
    point.ratios[text] = variant.time.median / point.built_in_seconds;
  }
  time_contenders(bench, cold, built_in, variants, point);
  point.ratios.erase(point.built_in);
}

TunedPoint tune_point(Bench& bench, const Workload& workload, Step::Form form) {
  TunedPoint point;
  point.name = workload.name;
  if (form == Step::Form::tokens) point.name += " (tokens)";
  const int num_layers = num_cold_layers(workload, bench.limits);
  if (num_layers == 0) {
    point.skipped = "no row has an adapter, or two layers do not fit the memory";
    return point;
  }
  try {
    measure(bench, workload, form, num_layers, point);
  } catch (const CommandError& error) {
    point.failure = error.what();
  }
  return point;
}

// Of all points that share a key: the choice with the lowest mean ratio among those that all of
// them can take; empty: the built-in one.
struct Best {
  std::string choice;
  double ratio = 1.0 - kLeastGain;
};
Best best_of(const std::vector<const TunedPoint*>& points) {
  Best best;
  for (const auto& candidate : points.front()->ratios) {
    double sum = 0;
    const bool everywhere = std::all_of(points.begin(), points.end(), [&](const TunedPoint* point) {
      const auto found = point->ratios.find(candidate.first);
      if (found == point->ratios.end()) return false;
      sum += found->second;
      return true;
    });
    const double ratio = sum / static_cast<double>(points.size());
    if (everywhere && ratio < best.ratio) best = {candidate.first, ratio};
  }
  return best;
}

std::string tuning_text(const std::vector<TunedPoint>& points, const TuningTarget& target,
                        const std::string& shapes, int& num_entries) {
  char line[512];
  (void)write_tuning_target(target, line, sizeof(line));
  std::string text =
      fmt::format("# rankfold tune, rankfold {}, {}, {}\n{}\n{}\n", version(), utc_now(),
                  printable(fs::path(shapes).filename().string()), kTuningHeader, line);
  std::map<std::string, std::vector<const TunedPoint*>> by_key;
  for (const TunedPoint& point : points) {
    if (!point.key.empty() && point.failure.empty()) by_key[point.key].push_back(&point);
  }
  num_entries = 0;
  for (const auto& [key, group] : by_key) {
    const Best best = best_of(group);
    std::string names;
    for (const TunedPoint* point : group) {
      names += (names.empty() ? "" : ", ") + printable(point->name);
    }
    if (best.choice.empty()) {
      text += fmt::format("# {}: the built-in choice, {}\n", names, group.front()->built_in);
      continue;
    }
    ++num_entries;
    text += fmt::format("{} -> {} # {}: {:.3f} of {}\n", key, best.choice, names, best.ratio,
                        group.front()->built_in);
  }
  return text;
}

void print_point(const TunedPoint& point, Output& out) {
  const std::string name = printable(point.name);
  if (!point.skipped.empty()) {
    out.print("{:<44}  {} {}\n", name, out.yellow("skipped"), point.skipped);
  } else if (!point.failure.empty()) {
    out.print("{:<44}  {} {}\n", name, out.red("FAILED"), printable(point.failure));
  } else {
    const Best best = best_of({&point});
    const double ratio = best.choice.empty() ? 1.0 : best.ratio;
    out.print("{:<44}{:>12.2f}{:>10.2f}{:>8.3f}  {}{}{}\n", name, point.built_in_seconds * kMicro,
              ratio * point.built_in_seconds * kMicro, ratio, point.built_in,
              best.choice.empty() ? "" : " -> ", best.choice);
  }
  out.flush();
}

}  // namespace

int run_tune(const TuneOptions& options, Output& out) {
  const Workloads workloads =
      read_workloads(options.shapes.empty() ? default_workloads_path() : options.shapes);
  const std::vector<Workload> selected = select_points(workloads, options.filter);
  // What an earlier file says is not what is compared with.
  const bool was_set = std::getenv(kTuningVariable) != nullptr;
  unsetenv(kTuningVariable);
  LoraBackend& backend = select_backend(options.backend);
  const std::vector<BackendListing> listings = list_backends();
  const BackendListing* const listing = find_listing(listings, backend);
  if (listing == nullptr) throw CommandError(kExitUsage, "the backend is not of the registry");
  const TuningTarget target = tuning_target(*listing, backend.device().index);
  NewFile file(options.output);
  Result<OwnedStream> stream = OwnedStream::create(backend);
  if (!stream.ok()) throw CommandError(kExitUsage, describe(stream.status()));
  const std::unique_ptr<DeviceTimer> timer = make_device_timer(backend, *stream);
  Patterns patterns(backend);
  Bench bench{backend, *stream, *timer, patterns, machine_limits(backend, timer->cache_bytes()),
              {}};
  out.print("{}:{}, {}, kernels {}\n{}\n", target.backend, backend.device().index,
            printable(target.device), target.kernels, printable(workloads.path));
  if (was_set) out.print("{} is set and not looked at\n", kTuningVariable);
  if (target.kernels == 0) {
    out.print("the {} backend reads no tuning file: what is written is for readers alone\n",
              target.backend);
  }
  out.print("\n{:<44}{:>12}{:>10}{:>8}  {}\n", "point", "built-in us", "best us", "ratio",
            "choice");
  std::vector<TunedPoint> points;
  const auto run = [&](const Workload& point, Step::Form form) {
    points.push_back(tune_point(bench, point, form));
    print_point(points.back(), out);
  };
  for (const Workload& point : selected) {
    run(point, Step::Form::as_benched);
    // Hosts that group nothing give the slots of tokens alone.
    if (point.kind == Workload::Kind::serve && !serves_one_adapter(point))
      run(point, Step::Form::tokens);
  }
  int num_entries = 0;
  file.write(tuning_text(points, target, workloads.path, num_entries));
  const auto failed = std::count_if(points.begin(), points.end(),
                                    [](const TunedPoint& point) { return !point.failure.empty(); });
  out.print("\n{}: {} entries of {} shapes; {} failed\n", printable(options.output), num_entries,
            points.size(), failed);
  return failed > 0 ? kExitFailure : kExitOk;
}

}  // namespace rankfold::tools
