// The two halves of write_safetensors(): everything that can be refused, then the bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "adapter/new_file.hpp"
#include "rankfold/safetensors.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

/// What stands before the data, and the size of each tensor's.
struct SafetensorsStart {
  std::string text;  ///< length and header
  std::vector<std::uint64_t> bytes;
};

/// Errors: those of write_safetensors() that need no file.
Result<SafetensorsStart> make_safetensors_start(std::span<const SafetensorsTensor> tensors,
                                                std::span<const SafetensorsMetadata> metadata);

Status write_safetensors(NewFile& file, const SafetensorsStart& start,
                         std::span<const SafetensorsTensor> tensors);

}  // namespace detail
RANKFOLD_NAMESPACE_END
