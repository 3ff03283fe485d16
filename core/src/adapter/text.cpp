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

// Bytes of the UTF-8 character that the text begins with; 0 where it begins with none.
std::size_t character_bytes(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t count = lead < 0xc2   ? 0
                            : lead < 0xe0 ? 2
                            : lead < 0xf0 ? 3
                            : lead < 0xf5 ? 4
                                          : 0;
  if (count == 0 || text.size() < count) return 0;
  for (std::size_t i = 1; i < count; ++i) {
    if ((byte(i) & 0xc0u) != 0x80u) return 0;
  }
  // Longer than needed, a surrogate, or past the last code point.
  const bool wrong = (lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xed && byte(1) >= 0xa0) ||
                     (lead == 0xf0 && byte(1) < 0x90) || (lead == 0xf4 && byte(1) >= 0x90);
  return wrong ? 0 : count;
}

// A terminal obeys C0, DEL and, in UTF-8, C1: U+009B begins the same sequences as escape and '['.
bool is_control(std::string_view character) noexcept {
  const auto lead = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return lead < 0x20 || lead == 0x7f;
  return lead == 0xc2 && static_cast<unsigned char>(character[1]) < 0xa0;
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
  for (std::string_view rest = text.substr(0, shown); !rest.empty();) {
    // A byte of no character is a control of terminals that do not read UTF-8.
    const std::size_t count = character_bytes(rest);
    const std::string_view character = rest.substr(0, std::max<std::size_t>(count, 1));
    const bool plain = count > 0 && !is_control(character);
    out += plain ? character : "?";
    rest.remove_prefix(character.size());
  }
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
  while (!text.empty()) {
    const std::size_t count = std::max<std::size_t>(character_bytes(text), 1);
    if (is_control(text.substr(0, count))) return true;
    text.remove_prefix(count);
  }
  return false;
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
  if (error) {  // a circle of links, a folder that may not be entered
    return Status(StatusCode::invalid_argument,
                  "cannot open " + quote(path) + ": " + error.message());
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
