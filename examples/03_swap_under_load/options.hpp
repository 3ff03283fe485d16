// The command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace swap_under_load {

struct Options {
  std::string backend;  ///< empty: RANKFOLD_BACKEND or the best
  int seconds = 10;
  std::int32_t num_adapters = 32;
  std::int32_t num_slots = 8;
  std::uint32_t seed = 1;
};

/// Returns nothing when the program is to end with `exit_code`: after --help (0) or a wrong option
/// (2); the text has been printed.
std::optional<Options> parse_options(int argc, const char* const* argv, int& exit_code);

}  // namespace swap_under_load
