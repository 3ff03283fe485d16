// rankfold list: which backends there are, which one is taken, and what each can do.
#include <algorithm>
#include <cstdlib>
#include <optional>

#include "command.hpp"
#include "rankfold/options.hpp"
#include "rankfold/registry.hpp"
#include "rankfold/version.hpp"
#include "tuning.hpp"

namespace rankfold::tools {
namespace {

constexpr const char* kVariable = "RANKFOLD_BACKEND";

// What RANKFOLD_BACKEND means here.
struct Wish {
  std::optional<std::string> value;  // nothing: not set
  std::string selects;               // "reference:0"
  Status status;
};

Wish read_wish() {
  Wish wish;
  if (const char* value = std::getenv(kVariable)) wish.value = value;
  const Result<BackendChoice> choice = registry().resolve(nullptr);
  if (choice.ok()) {
    wish.selects = fmt::format("{}:{}", choice->name, choice->device);
  } else {
    wish.status = choice.status();
  }
  return wish;
}

// Strategies need an instance: only --kernels makes one, and only of what is usable.
Result<std::vector<StrategyInfo>> read_strategies(const BackendListing& listing) {
  const Result<LoraBackend*> backend = registry().get(listing.name);
  if (!backend.ok()) return backend.status();
  return list_strategies(**backend);
}

int num_described(const BackendDescription& description) {
  return std::min<int>(description.num_devices, BackendDescription::kMaxDevices);
}

Json backend_json(const BackendListing& listing, bool kernels) {
  const BackendDescription& description = listing.description;
  Json devices = Json::array();
  for (int i = 0; i < num_described(description); ++i) {
    const DeviceDescription& device = description.devices[i];
    devices.push_back(
        {{"index", device.index}, {"name", device.name}, {"memory_bytes", device.memory_bytes}});
  }
  Json json = {{"name", listing.name},
               {"built", listing.built != 0},
               {"usable", description.usable != 0},
               {"taken_by_auto", listing.taken_by_auto != 0},
               {"is_accelerator", description.is_accelerator != 0},
               {"reason", description.reason},
               {"detail", description.detail},
               {"num_devices", description.num_devices},
               {"devices", std::move(devices)}};
  if (!kernels) return json;
  Json lines = Json::array();
  if (description.usable != 0) {
    const auto strategies = read_strategies(listing);
    if (!strategies.ok()) {
      json["error"] = to_json(strategies.status());
    } else {
      for (const StrategyInfo& info : *strategies) {
        lines.push_back({{"op", to_string(info.op)},
                         {"strategy", to_string(info.strategy)},
                         {"conditions", info.conditions},
                         {"configurations", split_configurations(info.configurations)}});
      }
    }
  }
  json["strategies"] = std::move(lines);
  return json;
}

void print_backends(const std::vector<BackendListing>& backends, Output& out) {
  std::vector<std::vector<std::string>> rows = {{"backend", "built", "usable", "auto", "about"}};
  for (const BackendListing& listing : backends) {
    const BackendDescription& description = listing.description;
    const bool usable = description.usable != 0;
    std::vector<std::string> about;
    for (int i = 0; i < num_described(description); ++i) {
      const DeviceDescription& device = description.devices[i];
      about.push_back(fmt::format("device {}: {}", device.index, device.name));
      if (device.memory_bytes > 0) {
        about.back() += ", " + human_bytes(static_cast<std::uint64_t>(device.memory_bytes));
      }
    }
    if (description.num_devices > num_described(description)) {
      about.push_back(
          fmt::format("{} more devices", description.num_devices - num_described(description)));
    }
    if (*description.detail != '\0') about.emplace_back(description.detail);
    if (*description.reason != '\0') about.emplace_back(description.reason);
    about.resize(std::max<std::size_t>(about.size(), 1));
    rows.push_back({listing.name, listing.built != 0 ? "yes" : "no", usable ? "yes" : "no",
                    listing.taken_by_auto != 0 ? "takes" : "", printable(about.front())});
    for (std::size_t i = 1; i < about.size(); ++i) {
      rows.push_back({"", "", "", "", printable(about[i])});
    }
  }
  out.write(table(rows));
}

// Numbers are those of CallOptions::configuration.
void print_configurations(std::size_t list, const std::string& configurations, Output& out) {
  constexpr std::size_t kWidth = 100;
  std::string line = fmt::format("  list {}:", list);
  int number = 0;
  for (const std::string& name : split_configurations(configurations)) {
    const std::string item = fmt::format("  {}: {}", ++number, name);
    if (line.size() + item.size() > kWidth) {
      out.print("{}\n", line);
      line = "         ";
    }
    line += item;
  }
  out.print("{}\n", line);
}

void print_strategies(const std::vector<BackendListing>& backends, Output& out) {
  for (const BackendListing& listing : backends) {
    if (listing.description.usable == 0) continue;
    out.print("\nstrategies of {}, in the order in which they are considered\n", listing.name);
    const auto strategies = read_strategies(listing);
    if (!strategies.ok()) {
      out.print("  {}\n", describe(strategies.status()));
      continue;
    }
    std::vector<std::vector<std::string>> rows = {
        {"  operation", "strategy", "configurations", "accepts"}};
    std::vector<std::string> lists;  // of configurations, each once
    for (const StrategyInfo& info : *strategies) {
      const std::string configurations = info.configurations;
      std::string cell = configurations;
      if (split_configurations(configurations).size() > 1) {
        auto at = std::find(lists.begin(), lists.end(), configurations);
        if (at == lists.end()) at = lists.insert(at, configurations);
        cell = fmt::format("list {}", at - lists.begin() + 1);
      }
      rows.push_back({std::string("  ") + to_string(info.op), to_string(info.strategy), cell,
                      info.conditions});
    }
    out.write(strategies->empty() ? std::string("  none\n") : table(rows));
    for (std::size_t i = 0; i < lists.size(); ++i) print_configurations(i + 1, lists[i], out);
  }
}

void print_wish(const Wish& wish, Output& out) {
  if (!wish.value.has_value()) {
    out.print("\n{} is not set", kVariable);
  } else {
    out.print("\n{} is \"{}\"", kVariable, printable(*wish.value));
  }
  if (wish.status.ok()) {
    out.print(": {} is taken\n", wish.selects);
  } else {
    out.write(" and selects nothing, see the error\n");
  }
}

void print_tuning(const TuningUse& use, Output& out) {
  if (use.path.empty()) return out.print("{} is not set\n", kTuningVariable);
  out.print("{} is \"{}\"", kTuningVariable, printable(use.path));
  if (!use.status.ok()) return out.write(" and cannot be used, see the error\n");
  const char* before = ": ";
  for (const TuningUse::Device& device : use.devices) {
    out.print("{}{}", before, TuningUse::describe(device));
    before = "; ";
  }
  out.write("\n");
}

Json tuning_json(const TuningUse& use) {
  Json devices = Json::array();
  for (const TuningUse::Device& device : use.devices) {
    devices.push_back({{"backend", device.backend},
                       {"device", device.index},
                       {"reads", device.reads},
                       {"entries", device.entries},
                       {"others", device.others}});
  }
  return {{"name", kTuningVariable},
          {"value", use.path.empty() ? Json(nullptr) : Json(use.path)},
          {"devices", std::move(devices)},
          {"error", use.status.ok() ? Json(nullptr) : to_json(use.status)}};
}

}  // namespace

int run_list(const ListOptions& options, Output& out) {
  const std::vector<BackendListing> backends = list_backends();
  const Wish wish = read_wish();
  const TuningUse tuning = tuning_use(backends);
  if (options.json) {
    Json array = Json::array();
    Json taken = nullptr;
    for (const BackendListing& listing : backends) {
      array.push_back(backend_json(listing, options.kernels));
      if (listing.taken_by_auto != 0) taken = listing.name;
    }
    out.write_json({{"version", version()},
                    {"auto", std::move(taken)},
                    {"variable",
                     {{"name", kVariable},
                      {"value", wish.value ? Json(*wish.value) : Json(nullptr)},
                      {"selects", wish.status.ok() ? Json(wish.selects) : Json(nullptr)},
                      {"error", wish.status.ok() ? Json(nullptr) : to_json(wish.status)}}},
                    {"tuning", tuning_json(tuning)},
                    {"backends", std::move(array)}});
  } else {
    out.print("rankfold {}\n\n", version());
    print_backends(backends, out);
    if (options.kernels) print_strategies(backends, out);
    print_wish(wish, out);
    print_tuning(tuning, out);
  }
  if (!wish.status.ok()) throw CommandError(kExitUsage, describe(wish.status));
  if (!tuning.status.ok()) throw CommandError(kExitUsage, describe(tuning.status));
  return kExitOk;
}

}  // namespace rankfold::tools
