// Files built in memory: safetensors bytes, PEFT configs, and adapters of both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rankfold/adapter.hpp"
#include "rankfold/safetensors.hpp"

namespace adapter_tests {

using Bytes = std::vector<std::byte>;

/// Length, header as given, data.
Bytes file_of(std::string_view header, std::size_t data_bytes);
Bytes file_of(std::string_view header, const Bytes& data);
Bytes file_with_length(std::uint64_t length, std::string_view rest);

struct Tensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::string dtype = "F32";
  float first = 0;  ///< element i of an F32 tensor is first + i
};

/// Dense F32 (values as Tensor::first says) or zero bytes of other dtypes.
Bytes file_of(const std::vector<Tensor>& tensors);

/// A and B of a module, as PEFT names them.
std::vector<Tensor> pair(const std::string& path, std::int64_t rank, std::int64_t in,
                         std::int64_t out, float first = 0);

/// {"peft_type":"LORA","r":4,"lora_alpha":8, more}: `more` is appended as it stands.
std::string config(std::string_view more = "", std::string_view rank = "4",
                   std::string_view alpha = "8");

rankfold::Result<rankfold::AdapterFile> open(const std::string& config,
                                             const std::vector<Tensor>& tensors,
                                             const rankfold::AdapterOptions& options = {});

float element(const rankfold::ConstTensorView& view, std::int64_t row, std::int64_t column);

/// Checks code and that the text holds each part.
void check_error(const rankfold::Status& status, rankfold::StatusCode code,
                 const std::vector<std::string>& parts);

}  // namespace adapter_tests
