// What the commands print: text and JSON on stdout, to a terminal, a file or a pipe that may close.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rankfold::tools {

using Json = nlohmann::ordered_json;

/// Text on a FILE. After the reader has gone (EPIPE) everything is swallowed and closed() is true;
/// long commands look at it and stop.
class Output {
 public:
  explicit Output(std::FILE* file);

  template <class... Args>
  void print(fmt::format_string<Args...> format, Args&&... args) {
    write(fmt::format(format, std::forward<Args>(args)...));
  }
  void write(std::string_view text);
  /// One document and a newline. Control characters are escaped, and text that is not UTF-8 gets
  /// replacement characters.
  void write_json(const Json& document);
  /// Hands everything to the reader now, so that a long command shows where it is.
  void flush();

  bool closed() const { return closed_; }
  /// Colours: a terminal, NO_COLOR not set, TERM not "dumb".
  bool colours() const { return colours_; }
  std::string green(std::string_view text) const { return coloured("32", text); }
  std::string red(std::string_view text) const { return coloured("31", text); }
  std::string yellow(std::string_view text) const { return coloured("33", text); }

  /// Flushes; `code`, or kExitFailure with a message on stderr when the output could not be
  /// written (a full disk).
  int finish(int code);

 private:
  std::string coloured(const char* code, std::string_view text) const;
  void note_failure();
  std::FILE* file_;
  bool closed_ = false;
  bool colours_ = false;
  int error_ = 0;
};

/// Names in files are whatever their author wrote: control characters (C0, DEL and C1) and bytes
/// that are no UTF-8 become \xNN.
std::string printable(std::string_view text);

/// "12.3 KiB", "512 B".
std::string human_bytes(std::uint64_t bytes);

/// Rows of cells as columns: widths from the content, two blanks between. Columns named in
/// `right_aligned` (a character a column, 'r' or 'l') go to the right.
std::string table(const std::vector<std::vector<std::string>>& rows,
                  std::string_view right_aligned = {});

}  // namespace rankfold::tools
