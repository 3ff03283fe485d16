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

// Bytes of the UTF-8 character that the text begins with; 0 where it begins with none.
std::size_t character_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t count = lead < 0xc2   ? 0
                            : lead < 0xe0 ? 2
                            : lead < 0xf0 ? 3
                            : lead < 0xf5 ? 4
                                          : 0;
  if (count == 0 || text.size() < count) return 0;
  for (std::size_t i = 1; i < count; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const bool wrong = (lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xed && byte(1) >= 0xa0) ||
                     (lead == 0xf0 && byte(1) < 0x90) || (lead == 0xf4 && byte(1) >= 0x90);
  return wrong ? 0 : count;
}

bool is_control(std::string_view character) {
  const auto lead = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return lead < 0x20 || lead == 0x7f;
  return lead == 0xc2 && static_cast<unsigned char>(character[1]) < 0xa0;
}

}  // namespace

Output::Output(std::FILE* file) : file_(file), colours_(wants_colours(file)) {}

void Output::write(std::string_view text) {
  if (closed_ || error_ != 0 || text.empty()) return;
  if (std::fwrite(text.data(), 1, text.size(), file_) != text.size()) note_failure();
}

void Output::write_json(const Json& document) {
  // The writer escapes C0 alone. The others stand inside strings, too, and a terminal obeys them.
  std::string text;
  const std::string dumped = document.dump(2, ' ', false, Json::error_handler_t::replace);
  for (std::string_view rest = dumped; !rest.empty();) {
    const std::string_view character =
        rest.substr(0, std::max<std::size_t>(character_bytes(rest), 1));
    if (character != "\n" && is_control(character)) {
      text += fmt::format("\\u00{:02x}", static_cast<unsigned char>(character.back()));
    } else {
      text += character;
    }
    rest.remove_prefix(character.size());
  }
  write(text + "\n");
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
  while (!text.empty()) {
    const std::size_t count = character_bytes(text);
    const std::string_view character = text.substr(0, std::max<std::size_t>(count, 1));
    if (count > 0 && !is_control(character)) {
      out += character;
    } else {
      for (const char c : character) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
    text.remove_prefix(character.size());
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
