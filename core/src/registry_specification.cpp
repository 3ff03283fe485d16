#include "registry_specification.hpp"

#include <algorithm>
#include <array>
#include <charconv>

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

namespace {

// Not the locale's: the same value must mean the same backend everywhere.
constexpr char lower(char c) noexcept {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

constexpr bool is_letter(char c) noexcept { return c >= 'a' && c <= 'z'; }
constexpr bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

// A value that is cut or made printable must not look like the value itself.
void quote(std::string_view text, char (&out)[96]) noexcept {
  constexpr std::size_t kRoom = sizeof(out) - 4;
  const std::size_t count = std::min(text.size(), kRoom);
  for (std::size_t i = 0; i < count; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    out[i] = byte >= 0x20 && byte < 0x7f ? text[i] : '?';
  }
  std::fill(out + count, out + count + (text.size() > kRoom ? 3 : 0), '.');
}

Status malformed(const BackendWish& wish, const char* why) noexcept {
  return Status::format(
      StatusCode::invalid_argument,
      "%s is \"%s\": malformed, %s; it should be empty or auto | NAME | NAME:DEVICE, with "
      "DEVICE a decimal index, for example reference or cuda:1",
      wish.source, wish.value, why);
}

}  // namespace

bool is_backend_name(std::string_view name) noexcept {
  if (name.empty() || name.size() > kMaxBackendName || !is_letter(name.front())) return false;
  return std::all_of(name.begin(), name.end(),
                     [](char c) { return is_letter(c) || is_digit(c) || c == '_'; });
}

Status parse_backend_wish(const char* source, const char* text, BackendWish* wish) noexcept {
  *wish = {};
  wish->source = source;
  const std::string_view value = text == nullptr ? "" : text;
  quote(value, wish->value);

  const std::size_t colon = value.find(':');
  const std::string_view name = value.substr(0, colon);
  if (name.size() > kMaxBackendName) return malformed(*wish, "the name is too long");
  std::transform(name.begin(), name.end(), wish->name, lower);
  const bool has_device = colon != std::string_view::npos;
  if (value.empty()) return {};
  if (!is_backend_name(wish->name)) return malformed(*wish, "that is not a name");

  if (has_device) {
    const std::string_view digits = value.substr(colon + 1);
    if (digits.empty() || !std::all_of(digits.begin(), digits.end(), is_digit)) {
      return malformed(*wish, "what stands after the colon is not a decimal index");
    }
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), wish->device);
    if (error != std::errc()) return malformed(*wish, "the index is over 2147483647");
  }
  const std::string_view lowered = wish->name;
  if (lowered == "auto") {
    if (has_device) return malformed(*wish, "auto takes no device");
    wish->name[0] = '\0';
  } else if (lowered == "cpu") {
    std::copy_n("reference", sizeof("reference"), wish->name);
  }
  return {};
}

int edit_distance(std::string_view a, std::string_view b) noexcept {
  std::array<int, kMaxBackendName + 1> row{};
  if (a.size() > kMaxBackendName || b.size() > kMaxBackendName) return 1000;
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace detail
RANKFOLD_NAMESPACE_END
