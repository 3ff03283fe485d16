#include "report.hpp"

#include <chrono>
#include <cstring>
#include <ctime>

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

std::string utc_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
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

Json point_json(const PointResult& point) {
  Json json = {{"name", point.name},
               {"kind", point.kind},
               {"outcome", outcome_name(point.outcome)},
               {"min_bytes", point.min_bytes},
               {"flops", point.flops}};
  if (point.outcome != Outcome::timed) {
    json["reason"] = point.reason;
    return json;
  }
  json["strategy"] = point.strategy;
  json["time"] = timing_json(point.time);
  json["gb_per_s"] = rate(point.min_bytes, point.time.median, 1e9);
  json["tflop_per_s"] = rate(point.flops, point.time.median, 1e12);
  json["bound_us"] = point.bound * kMicro;
  json["floor"] = timing_json(point.floor);
  json["group_tokens"] = timing_json(point.group);
  json["layers"] = point.num_layers;
  json["touched_bytes"] = point.touched_bytes;
  json["cold"] = point.cold;
  json["checked_rows"] = point.checked_rows;
  if (point.variants.empty()) return json;
  Json variants = Json::array();
  for (const PointResult::Variant& variant : point.variants) {
    Json line = {{"strategy", variant.strategy}, {"configuration", variant.configuration}};
    if (variant.refusal.empty()) {
      line["time"] = timing_json(variant.time);
    } else {
      line["declined"] = variant.refusal;
    }
    variants.push_back(std::move(line));
  }
  json["sweep"] = std::move(variants);
  return json;
}

Json number_or_null(const std::optional<double>& value, double unit) {
  return value.has_value() ? Json(*value / unit) : Json(nullptr);
}

}  // namespace

void print_head(const LoraBackend& backend, const Workloads& workloads, const MachineLimits& limits,
                const Yardsticks& yardsticks, Output& out) {
  out.print("{}:{}, {}; {} threads\n", backend.name(), backend.device().index,
            printable(device_name(backend)), yardsticks.threads);
  out.print("{}, {}\n", printable(workloads.path), to_string(workloads.dtype));
  out.print("here in this run: copy {:.1f} GB/s", yardsticks.copy_bytes_per_second / 1e9);
  if (yardsticks.read_bytes_per_second.has_value()) {
    out.print(", read {:.1f} GB/s", *yardsticks.read_bytes_per_second / 1e9);
  }
  if (yardsticks.matrix_flops_per_second.has_value()) {
    out.print(", float32 product {:.3f} TFLOP/s", *yardsticks.matrix_flops_per_second / 1e12);
  } else {
    out.write(", matrix rate not measured: bounds are by bytes alone");
  }
  out.print("\ncold: copies of {} together, last-level cache {}\n\n",
            human_bytes(static_cast<std::uint64_t>(limits.cold_bytes)),
            limits.cache_bytes > 0 ? human_bytes(static_cast<std::uint64_t>(limits.cache_bytes))
                                   : std::string("not known"));
  out.print("{:<36}{:>11}{:>11}{:>11}{:>8}{:>9}{:>11}{:>11}{:>8}{:>10}\n", "point", "time us",
            "p10", "p90", "GB/s", "TFLOP/s", "bound us", "floor us", "x floor", "group us");
  out.flush();
}

void print_point(const PointResult& point, Output& out) {
  const std::string name = printable(point.name);
  if (point.outcome != Outcome::timed) {
    const bool failed = point.outcome == Outcome::failed;
    out.print("{:<36}  {} {}\n", name, failed ? out.red("FAILED") : out.yellow("skipped"),
              printable(point.reason));
    out.flush();
    return;
  }
  out.print(
      "{:<36}{:>11.1f}{:>11.1f}{:>11.1f}{:>8.2f}{:>9.4f}{:>11.1f}{:>11.1f}{:>8.2f}{:>10.1f}{}\n",
      name, point.time.median * kMicro, point.time.p10 * kMicro, point.time.p90 * kMicro,
      rate(point.min_bytes, point.time.median, 1e9), rate(point.flops, point.time.median, 1e12),
      point.bound * kMicro, point.floor.median * kMicro, point.time.median / point.floor.median,
      point.group.median * kMicro,
      point.cold ? "" : "  not cold: too little memory for enough copies");
  for (const PointResult::Variant& variant : point.variants) {
    const std::string label =
        fmt::format("  {}{}{}", variant.strategy, variant.configuration.empty() ? "" : ": ",
                    printable(variant.configuration));
    if (variant.refusal.empty()) {
      out.print("{:<36}{:>11.1f}{:>11.1f}{:>11.1f}\n", label, variant.time.median * kMicro,
                variant.time.p10 * kMicro, variant.time.p90 * kMicro);
    } else {
      out.print("{:<36}  declined: {}\n", label, printable(variant.refusal));
    }
  }
  out.flush();
}

Json bench_json(const LoraBackend& backend, const Workloads& workloads, const MachineLimits& limits,
                const Yardsticks& yardsticks, const std::vector<PointResult>& points) {
  Json lines = Json::array();
  for (const PointResult& point : points) lines.push_back(point_json(point));
  return {{"version", version()},
          {"date", utc_now()},
          {"backend", fmt::format("{}:{}", backend.name(), backend.device().index)},
          {"device", device_name(backend)},
          {"threads", yardsticks.threads},
          {"workloads", workloads.path},
          {"dtype", to_string(workloads.dtype)},
          {"last_level_cache_bytes", limits.cache_bytes},
          {"cold_bytes", limits.cold_bytes},
          {"copy_gb_per_s", yardsticks.copy_bytes_per_second / 1e9},
          {"read_gb_per_s", number_or_null(yardsticks.read_bytes_per_second, 1e9)},
          {"matrix_tflop_per_s", number_or_null(yardsticks.matrix_flops_per_second, 1e12)},
          {"points", std::move(lines)}};
}

}  // namespace rankfold::tools
