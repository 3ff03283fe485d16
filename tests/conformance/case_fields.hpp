// Attributes and tensors of a case file by name; what nobody asked for is an error.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "host_tensor.hpp"
#include "rankfold/safetensors.hpp"

namespace rankfold::conformance {

/// Collects the first error of reading; after it, everything answers with nothing.
class CaseFields {
 public:
  explicit CaseFields(const Safetensors& file) : file_(file) {}

  /// Cut after 60 bytes: what a text says beside a name or a value must have room, too.
  static std::string cut(const std::string& text);
  /// The same in quotes.
  static std::string quote(const std::string& text) { return "\"" + cut(text) + "\""; }

  const Status& status() const noexcept { return status_; }
  bool ok() const noexcept { return status_.ok(); }
  void fail(const std::string& text);

  /// The attribute, or nothing where the file has none.
  std::optional<std::string> attribute(const std::string& name);
  /// A decimal number in [low, high].
  std::optional<std::int64_t> number(const std::string& name, std::int64_t low, std::int64_t high);
  /// "64,32,32".
  std::vector<std::int64_t> numbers(const std::string& name);

  /// The tensor, or one that is not given. `dtypes`: the names that it may have, as in "F32, F16".
  testing::HostTensor tensor(const std::string& name, std::size_t num_dims,
                             std::initializer_list<DType> dtypes);
  /// The same, and it must be there.
  testing::HostTensor required(const std::string& name, std::size_t num_dims,
                               std::initializer_list<DType> dtypes);
  /// Whether the file has a tensor of this name; asking makes nothing known.
  bool has_tensor(const std::string& name) const { return file_.find(name) != nullptr; }
  /// An int32 vector.
  std::vector<std::int32_t> integers(const std::string& name, bool is_required);

  /// Fails on the first tensor or attribute that nobody has asked for.
  void refuse_unknown(const std::string& op);

 private:
  const Safetensors& file_;
  std::set<std::string> known_tensors_, known_attributes_;
  Status status_;
};

}  // namespace rankfold::conformance
