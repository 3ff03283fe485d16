#include "run_tool.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

extern char** environ;

namespace rankfold::test {
namespace {

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

std::string read_all(int fd) {
  std::string text;
  char buffer[4096];
  REQUIRE(lseek(fd, 0, SEEK_SET) == 0);
  for (ssize_t count = 0; (count = read(fd, buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<std::size_t>(count));
  }
  return text;
}

int open_stdout(Stdout to) {
  if (to == Stdout::full_disk) return open("/dev/full", O_WRONLY | O_CLOEXEC);
  if (to == Stdout::file) return -1;
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  close(ends[0]);  // the reader leaves before the first line
  return ends[1];
}

}  // namespace

nlohmann::json ToolRun::json() const {
  const nlohmann::json document = nlohmann::json::parse(out, nullptr, false);
  INFO("stdout: " << out);
  REQUIRE_FALSE(document.is_discarded());
  return document;
}

ToolRun run_tool(const std::vector<std::string>& arguments,
                 const std::vector<std::string>& environment, Stdout to) {
  std::vector<std::string> words = {RANKFOLD_TOOL};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> variables = environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    if (text.rfind("RANKFOLD_", 0) != 0) variables.push_back(text);
  }
  std::vector<char*> argv = pointers(words);
  std::vector<char*> envp = pointers(variables);

  std::FILE* const out_file = std::tmpfile();
  std::FILE* const err_file = std::tmpfile();
  REQUIRE(out_file != nullptr);
  REQUIRE(err_file != nullptr);
  const int other = open_stdout(to);
  const int out_fd = other >= 0 ? other : fileno(out_file);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    dup2(out_fd, STDOUT_FILENO);
    dup2(fileno(err_file), STDERR_FILENO);
    execve(RANKFOLD_TOOL, argv.data(), envp.data());
    _exit(127);
  }
  int state = 0;
  REQUIRE(waitpid(child, &state, 0) == child);
  if (other >= 0) close(other);
  ToolRun run;
  if (WIFEXITED(state)) run.exit_code = WEXITSTATUS(state);
  if (WIFSIGNALED(state)) run.signal = WTERMSIG(state);
  run.out = read_all(fileno(out_file));
  run.err = read_all(fileno(err_file));
  std::fclose(out_file);
  std::fclose(err_file);
  return run;
}

ScratchFolder::ScratchFolder() {
  path_ = (std::filesystem::temp_directory_path() / "rankfold_tool_XXXXXX").string();
  REQUIRE(mkdtemp(path_.data()) != nullptr);
}

ScratchFolder::~ScratchFolder() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

std::string ScratchFolder::write(const std::string& name, const std::string& content) const {
  const std::string file = path(name);
  std::ofstream(file, std::ios::binary) << content;
  return file;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace rankfold::test
