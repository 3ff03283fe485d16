#include "adapter/safetensors_writer.hpp"

#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "adapter/safetensors_header.hpp"
#include "adapter/text.hpp"
#include "guard.hpp"
#include "rankfold/safetensors.hpp"

RANKFOLD_NAMESPACE_BEGIN

namespace {

using detail::quote;
using Json = nlohmann::ordered_json;

Status invalid(const std::string& text) { return Status(StatusCode::invalid_argument, text); }

const detail::FileDType* file_dtype(DType dtype) noexcept {
  std::string name = to_string(dtype);
  for (char& c : name) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return detail::find_file_dtype(name);
}

// A JSON string literal; invalid UTF-8 throws.
std::string literal(const char* text) { return Json(text).dump(); }

Status append_metadata(std::span<const SafetensorsMetadata> metadata, std::string& header) {
  if (metadata.empty()) return {};
  header += "\"__metadata__\":{";
  for (const SafetensorsMetadata& pair : metadata) {
    if (pair.key == nullptr || pair.value == nullptr) {
      return invalid("metadata: a key or value is null");
    }
    header += (&pair == metadata.data() ? "" : ",") + literal(pair.key) + ":" + literal(pair.value);
  }
  header += "}";
  return {};
}

Status append_tensor(const SafetensorsTensor& tensor, std::uint64_t& offset, std::string& header,
                     std::uint64_t& bytes) {
  if (tensor.name == nullptr) return invalid("tensors: a name is null");
  const std::string name = "tensors: " + quote(tensor.name);
  if (std::strcmp(tensor.name, "__metadata__") == 0) {
    return invalid("tensors: __metadata__ is the format's own name");
  }
  const detail::FileDType* dtype = file_dtype(tensor.dtype);
  if (dtype == nullptr) return invalid(name + " has an unknown dtype");
  if (tensor.num_dims < 0 || tensor.num_dims > kSafetensorsMaxDims) {
    return invalid(name + " has " + std::to_string(tensor.num_dims) + " dimensions, 0 to " +
                   std::to_string(kSafetensorsMaxDims) + " are legal");
  }
  for (int i = 0; i < tensor.num_dims; ++i) {
    if (tensor.sizes[i] < 0) {
      return invalid(name + " has a negative size in " +
                     detail::shape_text(tensor.sizes, tensor.num_dims));
    }
  }
  const auto size = detail::bytes_of(*dtype, tensor.sizes, tensor.num_dims);
  if (!size) return invalid(name + ": " + size.status().message());
  bytes = *size;
  if (bytes != 0 && tensor.data == nullptr) return invalid(name + " has null data");
  std::string shape;
  for (int i = 0; i < tensor.num_dims; ++i) {
    shape += (i == 0 ? "" : ",") + std::to_string(tensor.sizes[i]);
  }
  header += literal(tensor.name) + ":{\"dtype\":\"" + dtype->name + "\",\"shape\":[" + shape +
            "],\"data_offsets\":[" + std::to_string(offset) + ",";
  if (__builtin_add_overflow(offset, bytes, &offset)) return invalid(name + ": bytes overflow");
  header += std::to_string(offset) + "]}";
  return {};
}

}  // namespace

namespace detail {

Result<SafetensorsStart> make_safetensors_start(std::span<const SafetensorsTensor> tensors,
                                                std::span<const SafetensorsMetadata> metadata) {
  try {
    std::string header = "{";
    if (Status status = append_metadata(metadata, header); !status.ok()) return status;
    std::uint64_t offset = 0;
    std::vector<std::uint64_t> bytes(tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (header.size() > 1) header += ",";
      if (Status status = append_tensor(tensors[i], offset, header, bytes[i]); !status.ok()) {
        return status;
      }
    }
    header += "}";
    header.append((8 - header.size() % 8) % 8, ' ');
    // What the reader would refuse (a name twice) is not written.
    if (header.size() > kMaxHeaderBytes) {
      return invalid("the header would take " + std::to_string(header.size()) +
                     " bytes, the most is " + std::to_string(kMaxHeaderBytes));
    }
    if (const auto checked = parse_header(header, offset); !checked) {
      return invalid(checked.status().message());
    }
    std::string text;
    for (int i = 0; i < 8; ++i) text += static_cast<char>((header.size() >> (8 * i)) & 0xff);
    return SafetensorsStart{text + header, std::move(bytes)};
  } catch (const nlohmann::json::exception&) {
    return invalid("a name or metadata text is not UTF-8");
  }
}

Status write_safetensors(NewFile& file, const SafetensorsStart& start,
                         std::span<const SafetensorsTensor> tensors) {
  if (Status status = file.write(start.text.data(), start.text.size()); !status.ok()) return status;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (Status status = file.write(tensors[i].data, start.bytes[i]); !status.ok()) return status;
  }
  return file.finish();
}

}  // namespace detail

Status write_safetensors(std::string_view path, std::span<const SafetensorsTensor> tensors,
                         std::span<const SafetensorsMetadata> metadata) {
  return detail::guarded([&]() -> Status {
    const auto start = detail::make_safetensors_start(tensors, metadata);
    if (!start) return start.status();
    auto file = detail::NewFile::create(std::string(path));
    if (!file) return file.status();
    Status status = detail::write_safetensors(*file, *start, tensors);
    if (status.ok()) status = file->publish();
    if (status.ok()) file->settle();
    return status;
  });
}

RANKFOLD_NAMESPACE_END
