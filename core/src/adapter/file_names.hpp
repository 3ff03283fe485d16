// The two files of a PEFT directory.
#pragma once

#include "rankfold/export.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

inline constexpr const char* kConfigName = "adapter_config.json";
inline constexpr const char* kTensorsName = "adapter_model.safetensors";

}  // namespace detail
RANKFOLD_NAMESPACE_END
