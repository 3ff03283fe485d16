// The command line of the program.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace train_adapter {

struct Options {
  std::string backend;  ///< empty: RANKFOLD_BACKEND or the best
  std::filesystem::path data;
  std::filesystem::path out = "shift_adapter";
  std::int64_t steps = 300;
  std::int64_t batch = 64;
  std::uint64_t seed = 1;
  std::int32_t rank = 16;
  float learning_rate = 3e-3f;
};

/// Reads the command line. Returns nothing when the program is to end with `exit_code`: after
/// --help (0) or a wrong option (2); the text has been printed.
std::optional<Options> parse_options(int argc, const char* const* argv, int& exit_code);

}  // namespace train_adapter
