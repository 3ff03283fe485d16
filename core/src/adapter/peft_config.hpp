// adapter_config.json as far as it decides what an adapter computes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "adapter/findings.hpp"
#include "adapter/module_patterns.hpp"
#include "rankfold/adapter.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

inline constexpr std::size_t kMaxConfigBytes = 4 << 20;

struct PeftConfig {
  double rank = 0;  ///< 0: not stated validly; a finding says so
  double alpha = 0;
  bool has_alpha = false;
  bool use_rslora = false;
  bool lora_bias = false;
  std::vector<std::string> target_parameters;
  ModulePatterns rank_pattern;
  ModulePatterns alpha_pattern;
};

/// Reads a config; what is wrong or not supported in a key becomes a finding. `name` stands in the
/// errors. Errors: malformed_file: not a JSON object as parse_json_object() takes it, too large.
Result<PeftConfig> parse_peft_config(std::string_view text, std::string_view name,
                                     const AdapterOptions& options, Findings& findings);

}  // namespace detail
RANKFOLD_NAMESPACE_END
