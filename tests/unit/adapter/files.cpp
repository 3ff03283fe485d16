#include "files.hpp"

#include <doctest/doctest.h>

#include <cstring>

namespace adapter_tests {

Bytes file_with_length(std::uint64_t length, std::string_view rest) {
  Bytes bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<std::byte>(length >> (8 * i)));
  for (char c : rest) bytes.push_back(static_cast<std::byte>(c));
  return bytes;
}

Bytes file_of(std::string_view header, const Bytes& data) {
  Bytes bytes = file_with_length(header.size(), header);
  bytes.insert(bytes.end(), data.begin(), data.end());
  return bytes;
}

Bytes file_of(std::string_view header, std::size_t data_bytes) {
  return file_of(header, Bytes(data_bytes));
}

Bytes file_of(const std::vector<Tensor>& tensors) {
  std::string header = "{";
  Bytes data;
  for (const Tensor& tensor : tensors) {
    std::int64_t count = 1;
    std::string shape;
    for (std::int64_t size : tensor.shape) {
      shape += (shape.empty() ? "" : ",") + std::to_string(size);
      count *= size;
    }
    const std::size_t begin = data.size();
    if (tensor.dtype == "F32") {
      data.resize(begin + static_cast<std::size_t>(count) * 4);
      for (std::int64_t i = 0; i < count; ++i) {
        const float value = tensor.first + static_cast<float>(i);
        std::memcpy(data.data() + begin + i * 4, &value, 4);
      }
    } else {
      const std::size_t size = tensor.dtype == "F64" ? 8 : tensor.dtype == "U8" ? 1 : 2;
      data.resize(begin + static_cast<std::size_t>(count) * size);
    }
    header += (header.size() > 1 ? ",\"" : "\"") + tensor.name + "\":{\"dtype\":\"" + tensor.dtype +
              "\",\"shape\":[" + shape + "],\"data_offsets\":[" + std::to_string(begin) + "," +
              std::to_string(data.size()) + "]}";
  }
  return file_of(header + "}", data);
}

std::vector<Tensor> pair(const std::string& path, std::int64_t rank, std::int64_t in,
                         std::int64_t out, float first) {
  const std::string prefix = "base_model.model." + path;
  return {{prefix + ".lora_A.weight", {rank, in}, "F32", first},
          {prefix + ".lora_B.weight", {out, rank}, "F32", first + 1000}};
}

std::string config(std::string_view more, std::string_view rank, std::string_view alpha) {
  std::string text = "{\"peft_type\":\"LORA\"";
  if (!rank.empty()) text += ",\"r\":" + std::string(rank);
  if (!alpha.empty()) text += ",\"lora_alpha\":" + std::string(alpha);
  if (!more.empty()) text += "," + std::string(more);
  return text + "}";
}

rankfold::Result<rankfold::AdapterFile> open(const std::string& config_text,
                                             const std::vector<Tensor>& tensors,
                                             const rankfold::AdapterOptions& options) {
  return rankfold::AdapterFile::parse(config_text, file_of(tensors), "test", options);
}

float element(const rankfold::ConstTensorView& view, std::int64_t row, std::int64_t column) {
  REQUIRE(view.dtype == rankfold::DType::f32);
  const auto* data = static_cast<const std::byte*>(view.data);
  float value = 0;
  std::memcpy(&value, data + (row * view.strides[0] + column * view.strides[1]) * 4, 4);
  return value;
}

void check_error(const rankfold::Status& status, rankfold::StatusCode code,
                 const std::vector<std::string>& parts) {
  const std::string text = status.message();
  CAPTURE(text);
  CHECK(status.code() == code);
  for (const std::string& part : parts) {
    CAPTURE(part);
    CHECK(text.find(part) != std::string::npos);
  }
}

}  // namespace adapter_tests
