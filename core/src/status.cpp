#include "rankfold/status.hpp"

#include <array>
#include <cstdio>
#include <cstring>

RANKFOLD_NAMESPACE_BEGIN

namespace {

constexpr std::array<const char*, 13> kCodeNames = {
    "ok",           "invalid_argument", "unsupported",   "unknown_backend",
    "not_compiled", "unavailable",      "out_of_memory", "workspace_too_small",
    "no_room",      "malformed_file",   "cancelled",     "device_error",
    "internal"};

// The largest cut <= at that does not split a UTF-8 sequence.
std::size_t character_boundary(const char* text, std::size_t at) noexcept {
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0u) == 0x80u) --at;
  return at;
}

constexpr std::size_t kEllipsis = 3;

}  // namespace

const char* to_string(StatusCode code) noexcept {
  const auto index = static_cast<std::size_t>(code);
  return index < kCodeNames.size() ? kCodeNames[index] : "?";
}

std::optional<StatusCode> parse_status_code(std::string_view name) noexcept {
  for (std::size_t i = 0; i < kCodeNames.size(); ++i) {
    if (name == kCodeNames[i]) return static_cast<StatusCode>(i);
  }
  return std::nullopt;
}

Status::Status(StatusCode code, std::string_view text) noexcept : code_(code) {
  if (code == StatusCode::ok) text = {};
  if (text.size() < kTextBytes) {
    if (!text.empty()) std::memcpy(text_, text.data(), text.size());  // data() may be null
    text_[text.size()] = '\0';
    return;
  }
  const std::size_t cut = character_boundary(text.data(), kTextBytes - 1 - kEllipsis);
  std::memcpy(text_, text.data(), cut);
  std::memcpy(text_ + cut, "...", kEllipsis + 1);
}

Status Status::vformat(StatusCode code, const char* format, std::va_list args) noexcept {
  // Room past the limit, so that the constructor sees whether it must cut.
  char text[kTextBytes + 8];
  const int length = std::vsnprintf(text, sizeof(text), format, args);
  if (length < 0) return Status(code, format);
  return Status(code, text);
}

Status Status::format(StatusCode code, const char* format, ...) noexcept {
  std::va_list args;
  va_start(args, format);
  Status status = vformat(code, format, args);
  va_end(args);
  return status;
}

Error::Error(const Status& status) : std::runtime_error(status.message()), status_(status) {}
Error::~Error() = default;

void throw_if_error(const Status& status) {
  if (!status.ok()) throw Error(status);
}

RANKFOLD_NAMESPACE_END
