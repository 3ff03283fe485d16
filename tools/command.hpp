// The commands of `rankfold`: their options and their exit codes. One file a command.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "output.hpp"
#include "rankfold/backend.hpp"
#include "rankfold/registry.hpp"
#include "rankfold/status.hpp"

namespace rankfold::tools {

// Exit codes, the same for every command; main.cpp's help states them.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;  ///< a case or a point failed
inline constexpr int kExitUsage = 2;    ///< command line, backend, or a file that is not there
inline constexpr int kExitRefused = 3;  ///< a file is malformed, or an adapter would be refused

/// Ends a command: the text goes to stderr.
class CommandError : public std::runtime_error {
 public:
  CommandError(int exit_code, const std::string& text)
      : std::runtime_error(text), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

struct ListOptions {
  bool json = false;
  bool kernels = false;
};
int run_list(const ListOptions& options, Output& out);

struct InspectOptions {
  std::string path;
  bool json = false;
};
int run_inspect(const InspectOptions& options, Output& out);

struct CheckOptions {
  std::string backend;  ///< empty: RANKFOLD_BACKEND, then auto
  std::string seed;     ///< empty: RANKFOLD_TEST_SEED, then the built-in one
  std::string filter;
  std::string case_file;
  std::uint64_t drawn = 0;  ///< calls drawn at random instead of the table
  std::uint64_t first = 0;  ///< the number of the first of them
  bool list = false;
  bool json = false;
};
int run_check(const CheckOptions& options, Output& out);

struct BenchOptions {
  std::string backend;
  std::string workloads;  ///< empty: the file that is installed with the command
  std::string peers;      ///< empty: the file that is installed with the command, beside a GPU
  std::string filter;
  std::string json;  ///< file, "-" for stdout, empty for none
  bool sweep = false;
  bool off_grid = false;
  bool checks = false;
  std::vector<std::string> from;  ///< results to render; nothing is measured
  std::string markdown;
  std::string figures;  ///< a directory
};
int run_bench(const BenchOptions& options, Output& out);

struct TuneOptions {
  std::string backend;
  std::string shapes;  ///< empty: the file that is installed with the command
  std::string filter;
  std::string output;
};
int run_tune(const TuneOptions& options, Output& out);

/// The backend of --backend, else of RANKFOLD_BACKEND, else of auto. Throws CommandError (exit 2).
LoraBackend& select_backend(const std::string& specification);

/// What the registry knows, best first.
std::vector<BackendListing> list_backends();
/// What the backend says of itself.
std::vector<StrategyInfo> list_strategies(const LoraBackend& backend);
/// The parts of StrategyInfo::configurations.
std::vector<std::string> split_configurations(std::string_view text);

/// "invalid_argument: text".
std::string describe(const Status& status);
/// {"code": ..., "message": ...}.
Json to_json(const Status& status);

}  // namespace rankfold::tools
