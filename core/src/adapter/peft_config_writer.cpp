#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "adapter/saved_modules.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

namespace {

using Json = nlohmann::ordered_json;

// Whole numbers without a point, as people write them.
Json number(double value) {
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (value == std::floor(value) && value < kExact) return static_cast<std::int64_t>(value);
  return value;
}

std::string last_part(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string::npos ? path : path.substr(dot + 1);
}

// The text as a regular expression that matches it alone.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '_' || static_cast<unsigned char>(c) >= 0x80;
    if (!plain) out += '\\';
    out += c;
  }
  return out;
}

template <class Value>
double most_frequent(std::span<const SavedModule> modules, Value value) {
  std::map<double, std::size_t> counts;
  for (const SavedModule& module : modules) ++counts[value(module)];
  auto best = counts.begin();
  for (auto next = counts.begin(); next != counts.end(); ++next) {
    if (next->second > best->second) best = next;
  }
  return best->first;
}

// Patterns for the modules whose value is not the usual one. One name for all modules that share
// their last part and their value ("v_proj"), else whole paths, which stand first: the first match
// wins.
template <class Value>
Json make_pattern(std::span<const SavedModule> modules, double usual, Value value) {
  std::map<std::string, std::optional<double>> by_last_part;  // no value: several
  for (const SavedModule& module : modules) {
    const auto [found, is_new] = by_last_part.emplace(last_part(module.path), value(module));
    if (!is_new && found->second != value(module)) found->second.reset();
  }
  Json pattern = Json::object();
  for (const SavedModule& module : modules) {
    if (value(module) == usual || by_last_part.at(last_part(module.path))) continue;
    pattern["^" + escaped(module.path)] = number(value(module));
  }
  for (const auto& [part, shared] : by_last_part) {
    if (shared && *shared != usual) pattern[escaped(part)] = number(*shared);
  }
  return pattern;
}

Json text_or_null(const char* text) { return text == nullptr ? Json() : Json(text); }

}  // namespace

std::string make_peft_config(std::span<const SavedModule> modules,
                             const SaveAdapterOptions& options) {
  const auto rank = [](const SavedModule& module) { return static_cast<double>(module.rank); };
  const auto alpha = [](const SavedModule& module) { return module.alpha; };
  const double usual_rank = most_frequent(modules, rank);
  const double usual_alpha = most_frequent(modules, alpha);
  Json target_modules = Json::array();
  Json target_parameters = Json::array();
  bool has_bias = false;
  for (const SavedModule& module : modules) {
    (module.kind == TargetKind::experts ? target_parameters : target_modules)
        .push_back(module.path);
    has_bias = has_bias || module.bias.given();
  }
  Json config;
  config["alpha_pattern"] = make_pattern(modules, usual_alpha, alpha);
  config["base_model_name_or_path"] = text_or_null(options.base_model);
  config["bias"] = "none";
  config["fan_in_fan_out"] = false;
  config["inference_mode"] = true;
  config["init_lora_weights"] = true;
  config["lora_alpha"] = number(usual_alpha);
  config["lora_bias"] = has_bias;
  config["lora_dropout"] = options.dropout;
  config["modules_to_save"] = nullptr;
  config["peft_type"] = "LORA";
  config["r"] = number(usual_rank);
  config["rank_pattern"] = make_pattern(modules, usual_rank, rank);
  config["target_modules"] = target_modules;
  config["target_parameters"] = target_parameters.empty() ? Json() : target_parameters;
  config["task_type"] = text_or_null(options.task_type);
  config["use_dora"] = false;
  config["use_rslora"] = options.scaling == ScalingRule::sqrt_rank;
  return config.dump(2) + "\n";
}

}  // namespace detail
RANKFOLD_NAMESPACE_END
