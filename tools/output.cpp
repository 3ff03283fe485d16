#include "output.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "command.hpp"

namespace rankfold::tools {

namespace {

bool wants_colours(std::FILE* file) {
  if (isatty(fileno(file)) == 0) return false;
  const char* no_colour = std::getenv("NO_COLOR");
  if (no_colour != nullptr && *no_colour != '\0') return false;
  const char* terminal = std::getenv("TERM");
  return terminal != nullptr && std::string_view(terminal) != "dumb";
}

// Columns on a screen: code points, which is right for all but wide and combining characters.
std::size_t width(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

Output::Output(std::FILE* file) : file_(file), colours_(wants_colours(file)) {}

void Output::write(std::string_view text) {
  if (closed_ || error_ != 0 || text.empty()) return;
  if (std::fwrite(text.data(), 1, text.size(), file_) != text.size()) note_failure();
}

void Output::write_json(const Json& document) {
  write(document.dump(2, ' ', false, Json::error_handler_t::replace));
  write("\n");
}

void Output::flush() {
  if (closed_ || error_ != 0) return;
  if (std::fflush(file_) != 0) note_failure();
}

void Output::note_failure() {
  if (errno == EPIPE) {
    closed_ = true;
  } else {
    error_ = errno != 0 ? errno : EIO;
  }
}

int Output::finish(int code) {
  flush();
  if (error_ == 0) return code;
  fmt::print(stderr, "rankfold: the output cannot be written: {}\n", std::strerror(error_));
  return kExitFailure;
}

std::string Output::coloured(const char* code, std::string_view text) const {
  if (!colours_) return std::string(text);
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

std::string human_bytes(std::uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  const char* unit = "B";
  for (const char* next : {"KiB", "MiB", "GiB", "TiB"}) {
    if (value < 1024) break;
    value /= 1024;
    unit = next;
  }
  return fmt::format("{:.1f} {}", value, unit);
}

std::string table(const std::vector<std::vector<std::string>>& rows,
                  std::string_view right_aligned) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string blanks(widths[i] - width(row[i]), ' ');
      const bool right = i < right_aligned.size() && right_aligned[i] == 'r';
      line += (i == 0 ? "" : "  ") + (right ? blanks + row[i] : row[i] + blanks);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

}  // namespace rankfold::tools
