// The command line of the demonstration.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "serving/adapter_store.hpp"

namespace string_tasks {

struct Options {
  std::string backend;  ///< empty: RANKFOLD_BACKEND or the best
  std::filesystem::path data;
  std::optional<std::filesystem::path> model;
  std::vector<serving::AdapterSource> adapters;  ///< the user's own
  std::vector<std::string> prompts;
  std::int32_t num_slots = 4;
  std::int64_t new_tokens = 16;
  bool steps = false;

  /// Whether there is a right answer: with the built-in model, adapters and prompts only.
  bool is_demo() const { return !model && adapters.empty() && prompts.empty(); }
};

/// Reads the command line. Returns nothing when the program is to end with `exit_code`: after
/// --help (0) or a wrong option (2); the text has been printed.
std::optional<Options> parse_options(int argc, const char* const* argv, int& exit_code);

}  // namespace string_tasks
