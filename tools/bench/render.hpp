// Where results go beside the terminal: JSON, Markdown and figures; and results read back.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "output.hpp"

namespace rankfold::tools {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

/// A file to be written, opened before anything is measured: a result that cannot be written is
/// lost after minutes. Null for "" and "-". Throws CommandError (exit 2), naming the option.
File open_output(const char* option, const std::string& path);

/// Documents that bench wrote. Throws CommandError: exit 2 when one cannot be read, 3 when it is
/// something else.
std::vector<Json> read_results(const std::vector<std::string>& paths);

/// Throw CommandError where a file cannot be written.
void write_markdown(const std::vector<Json>& documents, std::FILE* file);
/// DIRECTORY/GROUP.svg for each group. The directory is made.
void write_figures(const std::vector<Json>& documents, const std::string& directory);

}  // namespace rankfold::tools
