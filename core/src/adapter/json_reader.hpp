// What both readers of JSON share: a strict event stream over nlohmann-json's parser. Included by
// source files only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "rankfold/status.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

/// Base of the event handlers: keeps the first error and bounds the depth. Handlers return false to
/// stop.
class JsonEvents {
 public:
  using binary_t = nlohmann::json::binary_t;

  const Status& error() const noexcept { return error_; }

  bool binary(binary_t&) { return fail("binary data is not JSON"); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) {
    // The parser's own text may quote bytes of the file, so it is not passed on.
    const char* what =
        error.id == 406 ? "a number that overflows" : "invalid JSON or invalid UTF-8";
    return fail(std::string(what) + " at byte " + std::to_string(position));
  }

 protected:
  explicit JsonEvents(int max_depth) : max_depth_(max_depth) {}

  bool fail(std::string_view text) {
    if (error_.ok()) error_ = Status(StatusCode::malformed_file, text);
    return false;
  }
  bool enter() {
    if (++depth_ <= max_depth_) return true;
    return fail("JSON nested deeper than " + std::to_string(max_depth_) + " levels");
  }
  void leave() { --depth_; }
  int depth() const noexcept { return depth_; }

 private:
  Status error_;
  int max_depth_;
  int depth_ = 0;
};

/// Runs the events of a text. The parser underneath skips a byte order mark and takes a NUL for the
/// end of the text, so both are refused here.
template <class Events>
Status parse_json(std::string_view text, Events& events) {
  if (text.substr(0, 3) == "\xef\xbb\xbf") {
    return Status(StatusCode::malformed_file, "a byte order mark before the JSON");
  }
  if (const auto nul = text.find('\0'); nul != std::string_view::npos) {
    return Status::format(StatusCode::malformed_file, "a NUL byte in the JSON at byte %zu", nul);
  }
  const bool parsed = nlohmann::json::sax_parse(text.begin(), text.end(), &events);
  if (!events.error().ok()) return events.error();
  if (!parsed) return Status(StatusCode::malformed_file, "invalid JSON");
  return {};
}

}  // namespace detail
RANKFOLD_NAMESPACE_END
