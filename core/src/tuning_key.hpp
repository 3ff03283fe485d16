// Which problems share an entry of a tuning file: a key of fixed size, and its text.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "rankfold/problem.hpp"
#include "rankfold/status.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

/// Rows and segments count by powers of two; slices past the last are zero.
struct TuningKey {
  static constexpr int kWords = 4 + kMaxSlices;
  std::array<std::uint64_t, kWords> words{};
  std::uint64_t hash = 0;

  bool operator==(const TuningKey& other) const noexcept {
    return hash == other.hash && words == other.words;
  }
};
TuningKey make_tuning_key(const Problem& problem) noexcept;

/// A problem that has the key that the text names. Errors: malformed_file, naming the word.
Result<Problem> parse_tuning_key(std::string_view text);

/// The part of the text before the first blank, which is taken off with the blanks behind it.
std::string_view take_word(std::string_view& text) noexcept;
/// A decimal number from 0 to `most`, and nothing else.
bool parse_number(std::string_view text, std::int64_t most, std::int64_t* value) noexcept;

}  // namespace detail
RANKFOLD_NAMESPACE_END
