#include "report.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "command.hpp"
#include "rankfold/version.hpp"

namespace rankfold::tools {
namespace {

using Outcome = PointResult::Outcome;
constexpr double kMicro = 1e6;

// Of the device that is measured, as its backend describes it.
std::string device_name(const LoraBackend& backend) {
  for (const BackendListing& listing : list_backends()) {
    if (std::strcmp(listing.name, backend.name()) != 0) continue;
    for (const DeviceDescription& device : listing.description.devices) {
      if (device.index == backend.device().index && *device.name != '\0') return device.name;
    }
  }
  return "unnamed device";
}

double rate(std::int64_t amount, double seconds, double unit) {
  return seconds > 0 ? static_cast<double>(amount) / seconds / unit : 0;
}

Json timing_json(const Timing& timing) {
  return {{"median_us", timing.median * kMicro},
          {"p10_us", timing.p10 * kMicro},
          {"p90_us", timing.p90 * kMicro},
          {"replays", timing.replays}};
}

const char* outcome_name(Outcome outcome) {
  switch (outcome) {
    case Outcome::timed:
      return "timed";
    case Outcome::failed:
      return "failed";
    case Outcome::skipped:
      break;
  }
  return "skipped";
}

// Goals are stated against a device's table of floors, not against a host's measured passes.
bool has_goals(const Bench& bench) { return bench.yardsticks.floors.has_value(); }

void add_standing(const PointResult& point, const RunInfo& info, Json& json) {
  const Standing stand = standing(point, info, true);
  json[info.off_grid ? "limit_us" : "goal_us"] = stand.goal * kMicro;
  json[info.off_grid ? "within_limit" : "meets_goal"] = stand.met;
  if (stand.peer == 0) return;
  json["best_peer"] = {
      {"name", stand.peer_name}, {"us", stand.peer * kMicro}, {"times_floor", stand.peer_ratio}};
  json["ahead_of_peer"] = stand.ahead;
  Json times = Json::object();
  for (const auto& [name, seconds] : info.peers->find(point.name)->times) {
    times[name] = seconds * kMicro;
  }
  json["peers_us"] = std::move(times);
}

Json variants_json(const PointResult& point) {
  Json variants = Json::array();
  for (const Variant& variant : point.variants) {
    Json line = {{"strategy", variant.strategy}, {"configuration", variant.configuration}};
    if (variant.refusal.empty()) {
      line["time"] = timing_json(variant.time);
    } else {
      line[variant.wrong ? "failed" : "declined"] = variant.refusal;
    }
    variants.push_back(std::move(line));
  }
  return variants;
}

Json point_json(const PointResult& point, const Bench& bench, const RunInfo& info) {
  Json json = {{"name", point.name},           {"group", point.group},
               {"kind", point.kind},           {"outcome", outcome_name(point.outcome)},
               {"min_bytes", point.min_bytes}, {"flops", point.flops}};
  if (point.outcome != Outcome::timed) {
    json["reason"] = point.reason;
    return json;
  }
  json["strategy"] = point.strategy;
  json["configuration"] = point.configuration;
  json["from_tuning"] = point.from_tuning;
  json["addressing"] = point.addressing;
  json["time"] = timing_json(point.time);
  if (point.in_order.replays > 0) json["in_order"] = timing_json(point.in_order);
  json["gb_per_s"] = rate(point.min_bytes, point.time.median, 1e9);
  json["tflop_per_s"] = rate(point.flops, point.time.median, 1e12);
  json["bound_us"] = point.bound * kMicro;
  if (has_goals(bench)) {
    json["floor_us"] = point.floor.median * kMicro;
    add_standing(point, info, json);
  } else {
    json["floor"] = timing_json(point.floor);
  }
  json["times_floor"] = point.time.median / point.floor.median;
  if (point.group_tokens.replays > 0) json["group_tokens"] = timing_json(point.group_tokens);
  json["host_us"] = point.host_seconds * kMicro;
  json["layers"] = point.num_layers;
  if (point.nodes_per_layer >= 0) json["graph_nodes_per_layer"] = point.nodes_per_layer;
  json["touched_bytes"] = point.touched_bytes;
  json["cold"] = point.cold;
  json["checked_rows"] = point.checked_rows;
  if (!point.variants.empty()) json["sweep"] = variants_json(point);
  return json;
}

Json number_or_null(const std::optional<double>& value, double unit) {
  return value.has_value() ? Json(*value / unit) : Json(nullptr);
}

// Names off the grid say everything of the point.
int name_width(const RunInfo& info) { return info.off_grid ? 56 : 36; }

// With a star at the fastest. What is not for this problem is counted; JSON has the reasons.
void print_variants(const PointResult& point, const RunInfo& info, Output& out) {
  double least = 0;
  for (const Variant& variant : point.variants) {
    if (!variant.refusal.empty()) continue;
    if (least == 0 || variant.time.median < least) least = variant.time.median;
  }
  int num_declined = 0;
  std::string strategy;
  for (const Variant& variant : point.variants) {
    const bool first = variant.strategy != strategy;
    strategy = variant.strategy;
    const std::string label =
        fmt::format("  {}{}{}", variant.strategy, variant.configuration.empty() ? "" : ": ",
                    printable(variant.configuration));
    if (variant.refusal.empty()) {
      out.print("{:<{}}{:>11.2f}{:>11.2f}{:>11.2f}{:>9.2f}{}\n", label, name_width(info),
                variant.time.median * kMicro, variant.time.p10 * kMicro, variant.time.p90 * kMicro,
                variant.time.median / point.floor.median, variant.time.median == least ? " *" : "");
    } else if (variant.wrong) {
      out.print("{:<{}}  {} {}\n", label, name_width(info), out.red("FAILED"),
                printable(variant.refusal));
    } else if (first) {
      out.print("{:<{}}  declined: {}\n", label, name_width(info), printable(variant.refusal));
    } else {
      ++num_declined;
    }
  }
  if (num_declined > 0) out.print("  and {} configurations not for this point\n", num_declined);
}

}  // namespace

std::string utc_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

Standing standing(const PointResult& point, const RunInfo& info, bool has_goal) {
  Standing stand;
  if (point.outcome != Outcome::timed) return stand;
  stand.ratio = point.time.median / point.floor.median;
  if (!has_goal) return stand;
  stand.goal = info.off_grid ? off_grid_limit(point.floor.median) : goal(point.floor.median);
  stand.met = point.time.median <= stand.goal;
  const PeerPoint* const peer = info.peers != nullptr ? info.peers->find(point.name) : nullptr;
  if (peer == nullptr) return stand;
  stand.peer = peer->best;
  stand.peer_ratio = peer->best / peer->floor;
  stand.peer_name = peer->best_name;
  stand.ahead = point.time.median < stand.peer && stand.ratio < stand.peer_ratio;
  return stand;
}

void print_head(const Bench& bench, const RunInfo& info, Output& out) {
  const Yardsticks& yardsticks = bench.yardsticks;
  out.print("{}:{}, {}; {} threads\n", bench.backend.name(), bench.backend.device().index,
            printable(device_name(bench.backend)), yardsticks.threads);
  for (const auto& [what, version] : info.versions) {
    out.print("{}{}: {}", &what == &info.versions.front().first ? "" : ", ", what,
              printable(version));
  }
  if (!info.versions.empty()) out.write("\n");
  out.print("{}\n", printable(info.workloads));
  if (!info.tuning.empty()) out.print("tuning: {}\n", printable(info.tuning));
  if (info.peers != nullptr) {
    out.print("peers: {} on {}, {}\n", printable(info.peers->path), printable(info.peers->device),
              printable(info.peers->date));
  }
  out.print("here in this run: copy {:.1f} GB/s", yardsticks.copy_bytes_per_second / 1e9);
  if (yardsticks.read_bytes_per_second.has_value()) {
    out.print(", read {:.1f} GB/s", *yardsticks.read_bytes_per_second / 1e9);
  }
  if (yardsticks.matrix_flops_per_second.has_value()) {
    out.print(", {:.3f} TFLOP/s", *yardsticks.matrix_flops_per_second / 1e12);
  }
  out.print(" ({})\n", yardsticks.matrix_source);
  if (yardsticks.floors.has_value()) {
    out.write("cold elementwise, us by MiB moved:");
    for (const FloorTable::Entry& entry : yardsticks.floors->entries) {
      out.print(" {:g}: {:.2f}", static_cast<double>(entry.bytes) / (1 << 20),
                entry.seconds * kMicro);
    }
    out.write("\n");
  }
  out.print("cold: copies of {} together, last-level cache {}\n\n",
            human_bytes(static_cast<std::uint64_t>(bench.limits.cold_bytes)),
            bench.limits.cache_bytes > 0
                ? human_bytes(static_cast<std::uint64_t>(bench.limits.cache_bytes))
                : std::string("not known"));
  out.print("{:<{}}{:>11}{:>11}{:>11}{:>9}{:>10}{:>10}", "point", name_width(info), "time us",
            "p10", "p90", "x floor", "floor us", "bound us");
  if (has_goals(bench)) {
    out.print("{:>10}", "in order");
    out.print("{:>9}{:>7}", info.off_grid ? "limit" : "goal", "met");
    if (info.peers != nullptr) out.print("{:>10}{:>8}{:>7}", "peer us", "x floor", "ahead");
  }
  out.print("{:>9}{:>9}{:>9}{:>8}  {}\n", "GB/s", "TFLOP/s", "group us", "host us", "strategy");
  out.flush();
}

void print_point(const PointResult& point, const Bench& bench, const RunInfo& info, Output& out) {
  const std::string name = printable(point.name);
  if (point.outcome != Outcome::timed) {
    const bool failed = point.outcome == Outcome::failed;
    out.print("{:<{}}  {} {}\n", name, name_width(info),
              failed ? out.red("FAILED") : out.yellow("skipped"), printable(point.reason));
    out.flush();
    return;
  }
  const Standing stand = standing(point, info, has_goals(bench));
  out.print("{:<{}}{:>11.2f}{:>11.2f}{:>11.2f}{:>9.2f}{:>10.2f}{:>10.2f}", name, name_width(info),
            point.time.median * kMicro, point.time.p10 * kMicro, point.time.p90 * kMicro,
            stand.ratio, point.floor.median * kMicro, point.bound * kMicro);
  if (has_goals(bench)) {
    out.print("{:>10.2f}", point.in_order.median * kMicro);
    out.print("{:>9.2f}{:>7}", stand.goal * kMicro, stand.met ? "yes" : "NO");
    if (stand.peer > 0) {
      out.print("{:>10.2f}{:>8.2f}{:>7}", stand.peer * kMicro, stand.peer_ratio,
                stand.ahead ? "yes" : "NO");
    } else if (info.peers != nullptr) {
      out.print("{:>10}{:>8}{:>7}", "-", "-", "-");
    }
  }
  out.print("{:>9.1f}{:>9.3f}", rate(point.min_bytes, point.time.median, 1e9),
            rate(point.flops, point.time.median, 1e12));
  if (point.group_tokens.replays > 0) {
    out.print("{:>9.2f}", point.group_tokens.median * kMicro);
  } else {
    out.print("{:>9}", "-");
  }
  out.print("{:>8.2f}  {}{}{}{}{}\n", point.host_seconds * kMicro, point.strategy,
            point.configuration.empty() ? "" : ": ", printable(point.configuration),
            point.from_tuning ? " (tuned)" : "", point.cold ? "" : "  not cold: too few copies");
  print_variants(point, info, out);
  out.flush();
}

void print_summary(const std::vector<PointResult>& points, const Bench& bench, const RunInfo& info,
                   Output& out) {
  const auto count = [&](Outcome outcome) {
    return std::count_if(points.begin(), points.end(),
                         [&](const PointResult& point) { return point.outcome == outcome; });
  };
  out.print("\n{} timed, {} failed, {} skipped\n", count(Outcome::timed), count(Outcome::failed),
            count(Outcome::skipped));
  if (!has_goals(bench)) return;
  struct Line {
    const PointResult* point;
    Standing stand;
    double share() const { return point->time.median / stand.goal; }
  };
  std::vector<Line> lines;
  for (const PointResult& point : points) {
    if (point.outcome == Outcome::timed) lines.push_back({&point, standing(point, info, true)});
  }
  const auto met =
      std::count_if(lines.begin(), lines.end(), [](const Line& l) { return l.stand.met; });
  const auto peers =
      std::count_if(lines.begin(), lines.end(), [](const Line& l) { return l.stand.peer > 0; });
  const auto ahead =
      std::count_if(lines.begin(), lines.end(), [](const Line& l) { return l.stand.ahead; });
  const char* const word = info.off_grid ? "limit" : "goal";
  out.print("{} of {} within their {}", met, lines.size(), word);
  if (peers > 0) out.print("; {} of {} ahead of the best peer", ahead, peers);
  out.write("\n");
  std::stable_sort(lines.begin(), lines.end(),
                   [](const Line& a, const Line& b) { return a.share() > b.share(); });
  if (lines.size() > 10) lines.resize(10);
  out.print("furthest from their {}:\n", word);
  for (const Line& line : lines) {
    out.print("  {:<48}{:>9.2f} us, {:.2f} x {} {:.2f} us\n", printable(line.point->name),
              line.point->time.median * kMicro, line.share(), word, line.stand.goal * kMicro);
  }
}

Json bench_json(const Bench& bench, const RunInfo& info, const std::vector<PointResult>& points) {
  const Yardsticks& yardsticks = bench.yardsticks;
  Json lines = Json::array();
  for (const PointResult& point : points) lines.push_back(point_json(point, bench, info));
  Json versions = Json::object();
  for (const auto& [what, text] : info.versions) versions[what] = text;
  Json json = {
      {"version", version()},
      {"date", utc_now()},
      {"backend", fmt::format("{}:{}", bench.backend.name(), bench.backend.device().index)},
      {"device", device_name(bench.backend)},
      {"versions", std::move(versions)},
      {"threads", yardsticks.threads},
      {"workloads", std::filesystem::path(info.workloads).filename().string()},
      {"off_grid", info.off_grid},
      {"tuning", info.tuning.empty() ? Json(nullptr) : Json(info.tuning)},
      {"last_level_cache_bytes", bench.limits.cache_bytes},
      {"cold_bytes", bench.limits.cold_bytes},
      {"copy_gb_per_s", yardsticks.copy_bytes_per_second / 1e9},
      {"read_gb_per_s", number_or_null(yardsticks.read_bytes_per_second, 1e9)},
      {"matrix_tflop_per_s", number_or_null(yardsticks.matrix_flops_per_second, 1e12)},
      {"matrix_source", yardsticks.matrix_source}};
  if (info.peers != nullptr) {
    json["peers"] = {{"device", info.peers->device}, {"date", info.peers->date}};
  }
  if (yardsticks.floors.has_value()) {
    Json table = Json::array();
    for (const FloorTable::Entry& entry : yardsticks.floors->entries) {
      table.push_back(
          {{"mib", static_cast<double>(entry.bytes) / (1 << 20)}, {"us", entry.seconds * kMicro}});
    }
    json["cold_elementwise"] = std::move(table);
  }
  json["points"] = std::move(lines);
  return json;
}

}  // namespace rankfold::tools
