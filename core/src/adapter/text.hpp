// Small helpers for texts of errors and for names that are handed out as C strings.
#pragma once

#include <cstdint>
#include <cstdio>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "rankfold/safetensors.hpp"
#include "rankfold/status.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

/// The text in quotes as an error may show it: control characters (C0, DEL and C1) and what is not
/// UTF-8 as '?', cut after 160 bytes.
std::string quote(std::string_view text);

/// "[8, 64]".
std::string shape_text(const std::int64_t* sizes, int num_dims);
std::string shape_text(const SafetensorsEntry& entry);

/// true when it holds a control character: C0, DEL or C1.
bool has_control(std::string_view text) noexcept;
bool is_ascii(std::string_view text) noexcept;

/// Strings at fixed addresses, for structs that hand out const char*.
class StringStore {
 public:
  const char* add(std::string text) { return strings_.emplace_back(std::move(text)).c_str(); }

 private:
  std::deque<std::string> strings_;
};

/// A whole regular file. Errors: invalid_argument naming the path and the reason; malformed_file
/// when it has more than `max_bytes`, before anything is read; what `check` says of the open file
/// and its size, before memory for it is taken.
Result<std::vector<std::byte>> read_file(const std::string& path, std::uintmax_t max_bytes,
                                         Status (*check)(std::FILE*, std::uintmax_t) = nullptr);

}  // namespace detail
RANKFOLD_NAMESPACE_END
