#include "adapter/peft_config.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "adapter/json_tree.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

namespace {

using Kind = JsonValue::Kind;

// Keys that say how an adapter was made or loaded, not what it computes.
constexpr std::array<std::string_view, 14> kInertKeys = {"base_model_name_or_path",
                                                         "revision",
                                                         "task_type",
                                                         "peft_version",
                                                         "inference_mode",
                                                         "auto_mapping",
                                                         "lora_dropout",
                                                         "target_modules",
                                                         "exclude_modules",
                                                         "layers_to_transform",
                                                         "layers_pattern",
                                                         "fan_in_fan_out",
                                                         "megatron_core",
                                                         "qalora_group_size"};

struct RefusedKey {
  std::string_view key;
  const char* meaning;
};
// Keys that change the mathematics when they are set.
constexpr std::array<RefusedKey, 6> kRefusedKeys = {{
    {"use_dora", "DoRA normalises the adapted weight"},
    {"modules_to_save", "whole modules are replaced, not adapted"},
    {"use_qalora", "QALoRA pools x before A"},
    {"alora_invocation_tokens", "activated LoRA adapts only a part of the tokens"},
    {"trainable_token_indices", "rows of the embedding are replaced"},
    {"layer_replication", "the layers of the model are rearranged"},
}};

class ConfigReader {
 public:
  ConfigReader(const AdapterOptions& options, Findings& findings)
      : options_(options), findings_(findings) {}

  PeftConfig read(const JsonValue& root) {
    for (const auto& [key, value] : root.members) read_key(key, value);
    for (const char* key : {"peft_type", "r", "lora_alpha"}) {
      if (std::none_of(root.members.begin(), root.members.end(),
                       [key](const auto& member) { return member.name == key; })) {
        malformed(key, "is missing");
      }
    }
    return std::move(config_);
  }

 private:
  void read_key(const std::string& key, const JsonValue& value) {
    if (key == "peft_type") return read_peft_type(value);
    if (key == "r") return read_rank(value);
    if (key == "lora_alpha") return read_alpha(value);
    if (key == "use_rslora") return read_flag(key, value, config_.use_rslora);
    if (key == "lora_bias") return read_flag(key, value, config_.lora_bias);
    if (key == "bias") return read_bias(value);
    if (key == "rank_pattern") return read_patterns(key, value, config_.rank_pattern, true);
    if (key == "alpha_pattern") return read_patterns(key, value, config_.alpha_pattern, false);
    if (key == "init_lora_weights") return read_init(value);
    if (key == "target_parameters") return read_target_parameters(value);
    if (std::find(kInertKeys.begin(), kInertKeys.end(), key) != kInertKeys.end()) return;
    for (const RefusedKey& refused : kRefusedKeys) {
      if (key == refused.key) return read_refused(refused, value);
    }
    read_unknown(key, value);
  }

  void malformed(std::string_view key, const std::string& what) {
    findings_.refuse(StatusCode::malformed_file, key, std::string(key) + " " + what);
  }
  void unsupported(std::string_view key, const std::string& what) {
    findings_.refuse(StatusCode::unsupported, key, std::string(key) + " " + what);
  }

  void read_peft_type(const JsonValue& value) {
    if (value.kind != Kind::string || value.string != "LORA") {
      unsupported("peft_type", "is " + describe(value) + ", only 'LORA' is supported");
    }
  }

  static bool is_rank(const JsonValue& value) noexcept {
    return value.kind == Kind::integer && value.integer_fits && value.integer > 0 &&
           value.integer <= std::numeric_limits<std::int32_t>::max();
  }
  // Negative values would be legal arithmetic, but no training writes them.
  static bool is_alpha(const JsonValue& value) noexcept {
    return (value.kind == Kind::integer || value.kind == Kind::fraction) &&
           std::isfinite(value.number) && value.number >= 0 &&
           value.number <= std::numeric_limits<float>::max();
  }

  void read_rank(const JsonValue& value) {
    if (!is_rank(value)) return malformed("r", "is " + describe(value) + kRankRule);
    config_.rank = value.number;
  }
  void read_alpha(const JsonValue& value) {
    if (!is_alpha(value)) return malformed("lora_alpha", "is " + describe(value) + kAlphaRule);
    config_.alpha = value.number;
    config_.has_alpha = true;
  }
  void read_flag(const std::string& key, const JsonValue& value, bool& flag) {
    if (value.kind == Kind::null) return;
    if (value.kind != Kind::boolean) {
      return malformed(key, "is " + describe(value) + ", it must be true or false");
    }
    flag = value.boolean;
  }
  void read_bias(const JsonValue& value) {
    if (value.kind == Kind::null || (value.kind == Kind::string && value.string == "none")) return;
    unsupported("bias", "is " + describe(value) +
                            ", only 'none' is supported: biases of the base are replaced");
  }
  void read_init(const JsonValue& value) {
    if (value.kind == Kind::null || value.kind == Kind::boolean) return;
    if (value.kind == Kind::string && value.string == "gaussian") return;
    unsupported("init_lora_weights",
                "is " + describe(value) +
                    ", only true, false and 'gaussian' are supported: others may change the base");
  }
  void read_refused(const RefusedKey& refused, const JsonValue& value) {
    if (value.inert()) return;
    unsupported(refused.key,
                "is " + describe(value) + ", which is not supported: " + refused.meaning);
  }

  void read_target_parameters(const JsonValue& value) {
    if (value.inert()) return;
    if (value.kind != Kind::array || value.strings.size() != value.num_elements) {
      return malformed("target_parameters",
                       "is " + describe(value) + ", it must be a list of names");
    }
    config_.target_parameters = value.strings;
  }

  void read_patterns(const std::string& key, const JsonValue& value, ModulePatterns& patterns,
                     bool ranks) {
    if (value.kind == Kind::null) return;
    if (value.kind != Kind::object) {
      return malformed(key, "is " + describe(value) + ", it must be an object");
    }
    for (const auto& [pattern, number] : value.members) {
      if (ranks ? !is_rank(number) : !is_alpha(number)) {
        malformed(key, "of " + quote(pattern) + " is " + describe(number) +
                           (ranks ? kRankRule : kAlphaRule));
        continue;
      }
      const bool last = patterns.exhausted();  // all after it would be refused as well
      const Status status = patterns.add(pattern, number.number);
      if (!status.ok()) findings_.refuse(status.code(), key, key + ": " + status.message());
      if (last) return;
    }
  }

  void read_unknown(const std::string& key, const JsonValue& value) {
    if (value.inert()) {
      return findings_.note(
          key, "unknown key " + quote(key) + " is " + describe(value) + " and has no effect");
    }
    const char* const* allowed = options_.allowed_keys;
    const bool is_allowed = std::any_of(allowed, allowed + options_.num_allowed_keys,
                                        [&](const char* name) { return key == name; });
    if (is_allowed) {
      return findings_.note(
          key, "unknown key " + quote(key) + " is " + describe(value) + ", ignored as allowed");
    }
    findings_.refuse(StatusCode::unsupported, key,
                     "unknown key " + quote(key) + " is " + describe(value) +
                         "; an unknown key must be null, false, {} or [], or be allowed");
  }

  static constexpr const char* kRankRule = ", it must be an integer from 1 to 2147483647";
  static constexpr const char* kAlphaRule =
      ", it must be a number from 0 to the largest of float32";

  const AdapterOptions& options_;
  Findings& findings_;
  PeftConfig config_;
};

}  // namespace

Result<PeftConfig> parse_peft_config(std::string_view text, std::string_view name,
                                     const AdapterOptions& options, Findings& findings) {
  if (text.size() > kMaxConfigBytes) {
    return Status(StatusCode::malformed_file, quote(name) + " has " + std::to_string(text.size()) +
                                                  " bytes, the most is " +
                                                  std::to_string(kMaxConfigBytes));
  }
  const auto root = parse_json_object(text);
  if (!root) {
    return Status(root.status().code(), quote(name) + ": " + root.status().message());
  }
  return ConfigReader(options, findings).read(*root);
}

}  // namespace detail
RANKFOLD_NAMESPACE_END
