// rankfold inspect: what an adapter's files hold, and what of them rankfold would refuse.
#include <algorithm>
#include <filesystem>
#include <system_error>

#include "command.hpp"
#include "rankfold/adapter.hpp"
#include "rankfold/safetensors.hpp"

namespace rankfold::tools {
namespace {

namespace fs = std::filesystem;
using Severity = Finding::Severity;

constexpr const char* kConfigName = "adapter_config.json";

// A file with no adapter_config.json beside it is some other safetensors file.
bool is_adapter(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error) || fs::exists(path.parent_path() / kConfigName, error);
}

struct Totals {
  std::int64_t modules = 0;
  std::int64_t parameters = 0;
  std::int64_t bytes = 0;
  std::int64_t min_rank = 0;
  std::int64_t max_rank = 0;
};

const char* kind_of(const AdapterModule& module) noexcept {
  if (module.is_embedding != 0) return "embedding";
  return module.is_parameter != 0 ? "parameter" : "linear";
}

// Pairs of A and B in the module. Where the number of experts is not known, `rank` counts all rows.
std::int64_t num_pairs(const AdapterModule& module) noexcept {
  return std::max<std::int64_t>(module.num_experts, 1);
}

Totals sum(std::span<const AdapterModule> modules) {
  Totals totals;
  for (const AdapterModule& module : modules) {
    totals.parameters +=
        num_pairs(module) * module.rank * (module.in + module.out) + module.has_bias * module.out;
    totals.bytes += module.bytes;
    totals.min_rank = totals.modules == 0 ? module.rank : std::min(totals.min_rank, module.rank);
    totals.max_rank = std::max(totals.max_rank, module.rank);
    ++totals.modules;
  }
  return totals;
}

Json module_json(const AdapterModule& module) {
  return {{"path", module.path},
          {"kind", kind_of(module)},
          {"experts", module.num_experts == 0 ? Json(nullptr) : Json(module.num_experts)},
          {"rank", module.rank},
          {"alpha", module.alpha},
          {"scaling", module.scaling},
          {"in", module.in},
          {"out", module.out},
          {"a_dtype", to_string(module.a_dtype)},
          {"b_dtype", to_string(module.b_dtype)},
          {"bias", module.has_bias != 0},
          {"bytes", module.bytes}};
}

Json finding_json(const Finding& finding) {
  Json json = {{"severity", finding.severity == Severity::refused ? "refused" : "note"},
               {"subject", finding.subject},
               {"text", finding.text}};
  if (finding.severity == Severity::refused) json["code"] = to_string(finding.code);
  return json;
}

// Copies of the base's weights stand beside the adapter's own tensors: PEFT saves them whenever an
// embedding is adapted. They belong to no module, and are compared when a model is there.
std::vector<SafetensorsEntry> base_copies(const Safetensors& tensors) {
  constexpr std::string_view kSuffix = ".base_layer.weight";
  std::vector<SafetensorsEntry> copies;
  for (const SafetensorsEntry& entry : tensors.entries()) {
    if (std::string_view(entry.name).ends_with(kSuffix)) copies.push_back(entry);
  }
  return copies;
}

// The tensors of the adapter at this path, which AdapterFile has read before.
Result<Safetensors> read_tensors(const std::string& path) {
  std::error_code error;
  const bool folder = fs::is_directory(path, error);
  return Safetensors::read(folder ? (fs::path(path) / "adapter_model.safetensors").string() : path);
}

Json adapter_json(const std::string& path, const AdapterFile& file, const Safetensors& tensors) {
  Json modules = Json::array();
  for (const AdapterModule& module : file.modules()) modules.push_back(module_json(module));
  Json findings = Json::array();
  for (const Finding& finding : file.findings()) findings.push_back(finding_json(finding));
  Json copies = Json::array();
  for (const SafetensorsEntry& copy : base_copies(tensors)) {
    copies.push_back({{"tensor", copy.name}, {"bytes", copy.bytes}});
  }
  const Totals totals = sum(file.modules());
  return {{"path", path},
          {"kind", "adapter"},
          {"accepted", file.status().ok()},
          {"error", file.status().ok() ? Json(nullptr) : to_json(file.status())},
          {"totals",
           {{"modules", totals.modules},
            {"parameters", totals.parameters},
            {"bytes", totals.bytes},
            {"min_rank", totals.min_rank},
            {"max_rank", totals.max_rank}}},
          {"modules", std::move(modules)},
          {"base_copies", std::move(copies)},
          {"findings", std::move(findings)}};
}

void print_modules(std::span<const AdapterModule> modules, Output& out) {
  std::vector<std::vector<std::string>> rows = {{"module", "kind", "experts", "rank", "alpha",
                                                 "scaling", "in", "out", "dtype", "bias", "bytes"}};
  for (const AdapterModule& module : modules) {
    std::string dtype = to_string(module.a_dtype);
    if (module.a_dtype != module.b_dtype) dtype += std::string("/") + to_string(module.b_dtype);
    const std::string experts =
        module.num_experts == 0 ? "?" : fmt::format("{}", module.num_experts);
    rows.push_back({printable(module.path), kind_of(module),
                    module.is_parameter != 0 ? experts : "", fmt::format("{}", module.rank),
                    fmt::format("{}", module.alpha), fmt::format("{}", module.scaling),
                    fmt::format("{}", module.in), fmt::format("{}", module.out), dtype,
                    module.has_bias != 0 ? "yes" : "", fmt::format("{}", module.bytes)});
  }
  if (!modules.empty()) out.write(table(rows, "llrrrrrrllr") + "\n");
}

void print_findings(std::span<const Finding> findings, Severity severity, Output& out) {
  for (const Finding& finding : findings) {
    if (finding.severity != severity) continue;
    const bool refused = severity == Severity::refused;
    out.print("{} {}{}\n", refused ? out.red("refused") : "note   ",
              refused ? fmt::format("({}) ", to_string(finding.code)) : "",
              printable(finding.text));
  }
}

void print_adapter(const std::string& path, const AdapterFile& file, const Safetensors& tensors,
                   Output& out) {
  const Totals totals = sum(file.modules());
  out.print("adapter {}\n", printable(path));
  out.print("{} modules, ranks {} to {}, {} parameters, {}\n\n", totals.modules, totals.min_rank,
            totals.max_rank, totals.parameters,
            human_bytes(static_cast<std::uint64_t>(totals.bytes)));
  print_modules(file.modules(), out);
  for (const SafetensorsEntry& copy : base_copies(tensors)) {
    out.print(
        "note    tensor '{}' is a copy of the base's weight, {}: not compared without a model\n",
        printable(copy.name), human_bytes(copy.bytes));
  }
  print_findings(file.findings(), Severity::note, out);
  print_findings(file.findings(), Severity::refused, out);
  if (file.status().ok()) {
    out.print("{}: no model was given, so whether the modules fit one is not known\n",
              out.green("would be accepted"));
  } else {
    out.print("{}: {}\n", out.red("would be refused"), describe(file.status()));
  }
}

std::string shape_text(const SafetensorsEntry& entry) {
  std::string text = "[";
  for (int i = 0; i < entry.num_dims; ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", entry.sizes[i]);
  }
  return text + "]";
}

Json safetensors_json(const std::string& path, const Safetensors& file) {
  Json metadata = Json::object();
  for (const SafetensorsMetadata& pair : file.metadata()) metadata[pair.key] = pair.value;
  Json tensors = Json::array();
  std::uint64_t bytes = 0;
  for (const SafetensorsEntry& entry : file.entries()) {
    bytes += entry.bytes;
    Json shape = Json::array();
    for (int i = 0; i < entry.num_dims; ++i) shape.push_back(entry.sizes[i]);
    tensors.push_back({{"name", entry.name},
                       {"dtype", entry.dtype_name},
                       {"shape", std::move(shape)},
                       {"bytes", entry.bytes}});
  }
  return {{"path", path},
          {"kind", "safetensors"},
          {"totals", {{"tensors", file.entries().size()}, {"bytes", bytes}}},
          {"metadata", std::move(metadata)},
          {"tensors", std::move(tensors)}};
}

void print_safetensors(const std::string& path, const Safetensors& file, Output& out) {
  std::uint64_t bytes = 0;
  std::vector<std::vector<std::string>> rows = {{"tensor", "dtype", "shape", "bytes"}};
  for (const SafetensorsEntry& entry : file.entries()) {
    bytes += entry.bytes;
    rows.push_back({printable(entry.name), entry.dtype_name, shape_text(entry),
                    fmt::format("{}", entry.bytes)});
  }
  out.print("safetensors file {}\n", printable(path));
  out.print("no {} beside it, so this is no adapter; {} tensors, {}\n\n", kConfigName,
            file.entries().size(), human_bytes(bytes));
  for (const SafetensorsMetadata& pair : file.metadata()) {
    out.print("{} = {}\n", printable(pair.key), printable(pair.value));
  }
  if (!file.metadata().empty()) out.write("\n");
  if (!file.entries().empty()) out.write(table(rows, "lllr"));
}

// A file that breaks its format: there is nothing to report but the text.
int report_unreadable(const InspectOptions& options, const char* kind, const Status& status,
                      Output& out) {
  const int code = status.code() == StatusCode::malformed_file ? kExitRefused : kExitUsage;
  if (options.json) {
    out.write_json(
        {{"path", options.path}, {"kind", kind}, {"accepted", false}, {"error", to_json(status)}});
  }
  throw CommandError(code, describe(status));
}

int inspect_adapter(const InspectOptions& options, Output& out) {
  const Result<AdapterFile> file = AdapterFile::open(options.path);
  if (!file.ok()) return report_unreadable(options, "adapter", file.status(), out);
  const Result<Safetensors> tensors = read_tensors(options.path);
  if (!tensors.ok()) return report_unreadable(options, "adapter", tensors.status(), out);
  if (options.json) {
    out.write_json(adapter_json(options.path, *file, *tensors));
  } else {
    print_adapter(options.path, *file, *tensors, out);
  }
  return file->status().ok() ? kExitOk : kExitRefused;
}

int inspect_safetensors(const InspectOptions& options, Output& out) {
  const Result<Safetensors> file = Safetensors::read(options.path);
  if (!file.ok()) return report_unreadable(options, "safetensors", file.status(), out);
  if (options.json) {
    out.write_json(safetensors_json(options.path, *file));
  } else {
    print_safetensors(options.path, *file, out);
  }
  return kExitOk;
}

}  // namespace

int run_inspect(const InspectOptions& options, Output& out) {
  return is_adapter(options.path) ? inspect_adapter(options, out)
                                  : inspect_safetensors(options, out);
}

}  // namespace rankfold::tools
