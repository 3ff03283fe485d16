#include "adapter/text.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

namespace {

constexpr std::size_t kShownBytes = 160;

bool is_control(char c) noexcept {
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20 || byte == 0x7f;
}

struct CloseFile {
  void operator()(std::FILE* file) const noexcept { std::fclose(file); }
};

}  // namespace

std::string quote(std::string_view text) {
  std::size_t shown = text.size();
  if (shown > kShownBytes) {
    shown = kShownBytes;
    while (shown > 0 && (static_cast<unsigned char>(text[shown]) & 0xc0u) == 0x80u) --shown;
  }
  std::string out = "'";
  for (char c : text.substr(0, shown)) out += is_control(c) ? '?' : c;
  if (shown < text.size()) out += "...";
  return out + "'";
}

std::string shape_text(const std::int64_t* sizes, int num_dims) {
  std::string out = "[";
  for (int i = 0; i < num_dims; ++i) out += (i == 0 ? "" : ", ") + std::to_string(sizes[i]);
  return out + "]";
}

std::string shape_text(const SafetensorsEntry& entry) {
  return shape_text(entry.sizes, entry.num_dims);
}

bool has_control(std::string_view text) noexcept {
  return std::any_of(text.begin(), text.end(), is_control);
}

bool is_ascii(std::string_view text) noexcept {
  return std::none_of(text.begin(), text.end(),
                      [](char c) { return static_cast<unsigned char>(c) >= 0x80; });
}

Result<std::vector<std::byte>> read_file(const std::string& path, std::uintmax_t max_bytes,
                                         Status (*check)(std::FILE*, std::uintmax_t)) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    return Status(StatusCode::invalid_argument, "no such file: " + quote(path));
  }
  if (!std::filesystem::is_regular_file(status)) {
    return Status(StatusCode::invalid_argument, quote(path) + " is not a regular file");
  }
  std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path.c_str(), "rb"));
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (file == nullptr || error) {
    return Status(StatusCode::invalid_argument,
                  "cannot open " + quote(path) + ": " + std::strerror(errno));
  }
  if (size > max_bytes) {
    return Status(StatusCode::malformed_file, quote(path) + " has " + std::to_string(size) +
                                                  " bytes, the most is " +
                                                  std::to_string(max_bytes));
  }
  if (check != nullptr) {
    if (const Status said = check(file.get(), size); !said.ok()) {
      return Status(said.code(), quote(path) + ": " + said.message());
    }
    std::rewind(file.get());
  }
  std::vector<std::byte> bytes(static_cast<std::size_t>(size));
  if (std::fread(bytes.data(), 1, bytes.size(), file.get()) != bytes.size()) {
    return Status(StatusCode::invalid_argument, quote(path) + " could not be read to its end of " +
                                                    std::to_string(size) + " bytes");
  }
  return bytes;
}

}  // namespace detail
RANKFOLD_NAMESPACE_END
