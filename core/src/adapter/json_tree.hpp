// A JSON document as a tree that keeps the order of members, for small files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rankfold/status.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

struct JsonMember;

/// One value. Of arrays the number of elements and those that are strings are kept.
struct JsonValue {
  enum class Kind { null, boolean, integer, fraction, string, array, object };
  Kind kind = Kind::null;
  bool boolean = false;
  double number = 0;                 ///< integer and fraction
  std::int64_t integer = 0;          ///< integer, when it fits
  bool integer_fits = false;         ///< integer within int64
  std::uint64_t num_elements = 0;    ///< array
  std::vector<std::string> strings;  ///< array
  std::string string;
  std::vector<JsonMember> members;  ///< object, in file order

  // Out of line, where JsonMember is complete.
  JsonValue();
  JsonValue(JsonValue&&) noexcept;
  JsonValue& operator=(JsonValue&&) noexcept;
  ~JsonValue();

  /// null, false, {} or []: what a key of no effect may hold.
  bool inert() const noexcept;
};

struct JsonMember {
  std::string name;
  JsonValue value;
};

/// "null", "true", "12", "'text'", "an array of 3", "an object of 2".
std::string describe(const JsonValue& value);

/// Parses an object. Errors: malformed_file: not UTF-8 JSON, NaN and Infinity, a byte order mark,
/// NUL, a name twice in an object, nested too deep, root not an object.
Result<JsonValue> parse_json_object(std::string_view text);

}  // namespace detail
RANKFOLD_NAMESPACE_END
