// Runs the command `rankfold` and keeps what it printed.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace rankfold::test {

struct ToolRun {
  int exit_code = -1;  ///< -1: it ended by a signal
  int signal = 0;
  std::string out;
  std::string err;

  /// stdout as one JSON document; fails the test when it is not exactly that.
  nlohmann::json json() const;
};

enum class Stdout { file, closed_pipe, full_disk };

/// `environment`: "NAME=value" beside this process's own; RANKFOLD_BACKEND of this process is left
/// out.
ToolRun run_tool(const std::vector<std::string>& arguments,
                 const std::vector<std::string>& environment = {}, Stdout to = Stdout::file);

/// A folder of its own, removed with its content at the end of the test.
class ScratchFolder {
 public:
  ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder();
  std::string path(const std::string& name) const { return path_ + "/" + name; }
  /// Writes a file and returns its path.
  std::string write(const std::string& name, const std::string& content) const;

 private:
  std::string path_;
};

bool contains(const std::string& text, const std::string& part);

}  // namespace rankfold::test
