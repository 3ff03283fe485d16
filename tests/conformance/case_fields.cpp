#include "case_fields.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>

namespace rankfold::conformance {

using testing::HostTensor;

namespace {

std::optional<std::int64_t> parse_number(std::string_view text) {
  std::int64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc{} || parsed.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string upper(DType dtype) {
  std::string text = to_string(dtype);
  for (char& c : text) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return text;
}

}  // namespace

std::string CaseFields::cut(const std::string& text) {
  constexpr std::size_t kShown = 60;
  std::size_t shown = std::min(text.size(), kShown);
  while (shown < text.size() && shown > 0 &&
         (static_cast<unsigned char>(text[shown]) & 0xc0u) == 0x80u) {
    --shown;
  }
  return text.substr(0, shown) + (shown < text.size() ? "..." : "");
}

void CaseFields::fail(const std::string& text) {
  if (status_.ok()) status_ = Status(StatusCode::malformed_file, "case file: " + text);
}

std::optional<std::string> CaseFields::attribute(const std::string& name) {
  known_attributes_.insert(name);
  const char* const value = file_.find_metadata(name);
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

std::optional<std::int64_t> CaseFields::number(const std::string& name, std::int64_t low,
                                               std::int64_t high) {
  const auto text = attribute(name);
  if (!text) return std::nullopt;
  const auto value = parse_number(*text);
  if (value && *value >= low && *value <= high) return value;
  fail("attribute " + name + " is " + quote(*text) + "; it should be a decimal number from " +
       std::to_string(low) + " to " + std::to_string(high));
  return std::nullopt;
}

std::vector<std::int64_t> CaseFields::numbers(const std::string& name) {
  const auto text = attribute(name);
  std::vector<std::int64_t> values;
  if (!text) return values;
  std::string_view rest = *text;
  while (true) {
    const std::size_t comma = rest.find(',');
    const auto value = parse_number(rest.substr(0, comma));
    if (!value) {
      fail("attribute " + name + " is " + quote(*text) +
           "; it should be decimal numbers separated by commas");
      return {};
    }
    values.push_back(*value);
    if (comma == std::string_view::npos) return values;
    rest.remove_prefix(comma + 1);
  }
}

HostTensor CaseFields::tensor(const std::string& name, std::size_t num_dims,
                              std::initializer_list<DType> dtypes) {
  known_tensors_.insert(name);
  const SafetensorsEntry* const entry = file_.find(name);
  if (entry == nullptr) return {};
  const bool good_dtype = entry->has_dtype != 0 &&
                          std::find(dtypes.begin(), dtypes.end(), entry->dtype) != dtypes.end();
  if (!good_dtype) {
    std::string wanted;
    for (const DType dtype : dtypes) wanted += (wanted.empty() ? "" : ", ") + upper(dtype);
    fail("tensor " + name + " has dtype " + entry->dtype_name + "; it should be one of " + wanted);
    return {};
  }
  if (static_cast<std::size_t>(entry->num_dims) != num_dims) {
    fail("tensor " + name + " has " + std::to_string(entry->num_dims) +
         " dimensions; it should have " + std::to_string(num_dims));
    return {};
  }
  HostTensor tensor(entry->dtype, {entry->sizes, entry->sizes + entry->num_dims});
  if (entry->bytes > 0) std::memcpy(tensor.bytes.data(), entry->data, entry->bytes);
  return tensor;
}

HostTensor CaseFields::required(const std::string& name, std::size_t num_dims,
                                std::initializer_list<DType> dtypes) {
  HostTensor result = tensor(name, num_dims, dtypes);
  if (!result.given() && file_.find(name) == nullptr) {
    fail("tensor " + name + " is missing; the operation needs it");
  }
  return result;
}

std::vector<std::int32_t> CaseFields::integers(const std::string& name, bool is_required) {
  const HostTensor values =
      is_required ? required(name, 1, {DType::i32}) : tensor(name, 1, {DType::i32});
  std::vector<std::int32_t> result(static_cast<std::size_t>(values.count()));
  if (!result.empty()) std::memcpy(result.data(), values.bytes.data(), values.bytes.size());
  return result;
}

void CaseFields::refuse_unknown(const std::string& op) {
  for (const SafetensorsEntry& entry : file_.entries()) {
    if (known_tensors_.count(entry.name) == 0) {
      fail("tensor " + cut(entry.name) + " means nothing to " + op);
    }
  }
  for (const SafetensorsMetadata& pair : file_.metadata()) {
    if (known_attributes_.count(pair.key) == 0) {
      fail("attribute " + cut(pair.key) + " means nothing to " + op);
    }
  }
}

}  // namespace rankfold::conformance
