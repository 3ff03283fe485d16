#include "adapter/json_tree.hpp"

#include <algorithm>
#include <cstdio>

#include "adapter/json_reader.hpp"
#include "adapter/text.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

namespace {

constexpr int kMaxDepth = 32;

class TreeEvents : public JsonEvents {
 public:
  explicit TreeEvents(JsonValue& root) : JsonEvents(kMaxDepth), root_(root) {}

  bool null() { return add(JsonValue()) != nullptr; }
  bool boolean(bool value) {
    JsonValue leaf;
    leaf.kind = JsonValue::Kind::boolean;
    leaf.boolean = value;
    return add(std::move(leaf)) != nullptr;
  }
  bool number_integer(std::int64_t value) {
    return integer(static_cast<double>(value), value, true);
  }
  bool number_unsigned(std::uint64_t value) {
    const bool fits = value <= static_cast<std::uint64_t>(INT64_MAX);
    return integer(static_cast<double>(value), fits ? static_cast<std::int64_t>(value) : 0, fits);
  }
  bool number_float(double value, const std::string&) {
    JsonValue leaf;
    leaf.kind = JsonValue::Kind::fraction;
    leaf.number = value;
    return add(std::move(leaf)) != nullptr;
  }
  bool string(std::string& text) {
    JsonValue leaf;
    leaf.kind = JsonValue::Kind::string;
    leaf.string = std::move(text);
    return add(std::move(leaf)) != nullptr;
  }
  bool start_object(std::size_t) { return open(JsonValue::Kind::object); }
  bool start_array(std::size_t) {
    if (depth() == 0) return fail("the root is an array, it must be an object");
    return open(JsonValue::Kind::array);
  }
  bool key(std::string& text) {
    if (text.find('\0') != std::string::npos) return fail("a NUL in a name");
    open_.back().node->members.push_back({std::move(text), JsonValue()});
    return true;
  }
  bool end_object() {
    if (!check_unique(*open_.back().node)) return false;
    return close();
  }
  bool end_array() { return close(); }

 private:
  // Values inside arrays are parsed and checked like all others, into a scratch node each.
  struct Open {
    JsonValue* node;
    std::unique_ptr<JsonValue> scratch;
  };

  JsonValue* add(JsonValue value) {
    if (open_.empty()) {
      if (value.kind != JsonValue::Kind::object) {
        fail("the root is " + describe(value) + ", it must be an object");
        return nullptr;
      }
      root_ = std::move(value);
      return &root_;
    }
    JsonValue& parent = *open_.back().node;
    if (parent.kind == JsonValue::Kind::array) {
      ++parent.num_elements;
      if (value.kind == JsonValue::Kind::string) parent.strings.push_back(value.string);
      open_.back().scratch = std::make_unique<JsonValue>(std::move(value));
      return open_.back().scratch.get();
    }
    parent.members.back().value = std::move(value);
    return &parent.members.back().value;
  }

  bool integer(double number, std::int64_t value, bool fits) {
    JsonValue leaf;
    leaf.kind = JsonValue::Kind::integer;
    leaf.number = number;
    leaf.integer = value;
    leaf.integer_fits = fits;
    return add(std::move(leaf)) != nullptr;
  }

  bool open(JsonValue::Kind kind) {
    if (!enter()) return false;
    JsonValue node;
    node.kind = kind;
    JsonValue* added = add(std::move(node));
    if (added == nullptr) return false;
    open_.push_back({added, nullptr});
    return true;
  }

  bool close() {
    leave();
    open_.pop_back();
    return true;
  }

  bool check_unique(const JsonValue& object) {
    std::vector<std::string_view> names;
    for (const auto& [name, value] : object.members) names.push_back(name);
    std::sort(names.begin(), names.end());
    const auto twin = std::adjacent_find(names.begin(), names.end());
    return twin == names.end() || fail("the name " + quote(*twin) + " appears twice in an object");
  }

  JsonValue& root_;
  std::vector<Open> open_;
};

}  // namespace

JsonValue::JsonValue() = default;
JsonValue::JsonValue(JsonValue&&) noexcept = default;
JsonValue& JsonValue::operator=(JsonValue&&) noexcept = default;
JsonValue::~JsonValue() = default;

bool JsonValue::inert() const noexcept {
  switch (kind) {
    case Kind::null:
      return true;
    case Kind::boolean:
      return !boolean;
    case Kind::array:
      return num_elements == 0;
    case Kind::object:
      return members.empty();
    default:
      return false;
  }
}

std::string describe(const JsonValue& value) {
  switch (value.kind) {
    case JsonValue::Kind::null:
      return "null";
    case JsonValue::Kind::boolean:
      return value.boolean ? "true" : "false";
    case JsonValue::Kind::integer:
      if (value.integer_fits) return std::to_string(value.integer);
      [[fallthrough]];
    case JsonValue::Kind::fraction: {
      char text[32];
      std::snprintf(text, sizeof(text), "%.9g", value.number);
      return text;
    }
    case JsonValue::Kind::string:
      return quote(value.string);
    case JsonValue::Kind::array:
      return "an array of " + std::to_string(value.num_elements);
    case JsonValue::Kind::object:
      return "an object of " + std::to_string(value.members.size());
  }
  return "?";
}

Result<JsonValue> parse_json_object(std::string_view text) {
  JsonValue root;
  TreeEvents events(root);
  if (Status status = parse_json(text, events); !status.ok()) return status;
  return root;
}

}  // namespace detail
RANKFOLD_NAMESPACE_END
