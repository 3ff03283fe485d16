#include "adapter/module_patterns.hpp"

#include <re2/re2.h>

#include "adapter/text.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

namespace {

// For one compiled pattern and the states of its automaton.
constexpr std::int64_t kPatternMemory = 1 << 20;
// Instructions of all patterns of a file together: 64 MB of them, some seconds to make. A pattern
// that exceeds its own memory counts as one that fills it.
constexpr std::uint64_t kMaxInstructions = std::uint64_t{1} << 22;
constexpr std::uint64_t kInstructionBytes = 16;
// Instructions times bytes over all matches of a file: some seconds at the very worst.
constexpr std::uint64_t kMaxWork = std::uint64_t{1} << 34;

// An escape of a letter (\d, \w, \b, ...), which Python extends to all of Unicode.
bool has_letter_escape(std::string_view pattern) noexcept {
  for (std::size_t i = 0; i + 1 < pattern.size(); ++i) {
    if (pattern[i] != '\\') continue;
    const char letter = pattern[++i];
    if ((letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z')) return true;
  }
  return false;
}

// Why a pattern means something else to Python than to RE2, or null.
const char* difference_to_python(std::string_view pattern) {
  bool in_class = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const std::string_view rest = pattern.substr(i);
    if (rest[0] == '\\') {
      // Escapes that RE2 knows and Python does not.
      if (rest.size() > 1 && std::string_view("CEQPp").find(rest[1]) != std::string_view::npos) {
        return "an escape that Python does not know";
      }
      if (rest.substr(0, 3) == "\\x{") return "an escape that Python does not know";
      ++i;
    } else if (in_class) {
      if (rest.substr(0, 2) == "[:") return "a POSIX class, which Python reads as single letters";
      in_class = rest[0] != ']';
    } else if (rest[0] == '[') {
      in_class = true;
      // A bracket that stands first, also after ^, is one of the letters.
      if (rest.substr(1, 1) == "^") ++i;
      if (pattern.substr(i + 1, 1) == "]") ++i;
      if (pattern.substr(i + 1, 2) == "[:") {
        return "a POSIX class, which Python reads as single letters";
      }
    } else if (rest.substr(0, 2) == "{,") {
      return "a repetition without a lower bound, which RE2 reads as letters";
    } else if (rest.substr(0, 2) == "(?" && rest.substr(0, 4) != "(?P<" &&
               rest.substr(0, 3) != "(?:") {
      return "a flag or an assertion";
    }
  }
  return nullptr;
}

}  // namespace

struct ModulePatterns::Pattern {
  std::string text;
  double value;
  bool ascii_only;  // holds an escape that Python extends to all of Unicode
  std::unique_ptr<RE2> expression;
};

ModulePatterns::ModulePatterns() = default;
ModulePatterns::ModulePatterns(ModulePatterns&&) noexcept = default;
ModulePatterns& ModulePatterns::operator=(ModulePatterns&&) noexcept = default;
ModulePatterns::~ModulePatterns() = default;

Status ModulePatterns::add(const std::string& pattern, double value) {
  const auto refuse = [&](const std::string& why) {
    return Status(StatusCode::unsupported, "the pattern " + quote(pattern) + " " + why);
  };
  if (pattern.size() > kMaxPatternBytes) {
    return refuse("has " + std::to_string(pattern.size()) + " bytes, the most is " +
                  std::to_string(kMaxPatternBytes));
  }
  if (const char* why = difference_to_python(pattern)) {
    return refuse(std::string("cannot be run as PEFT runs it: ") + why);
  }
  if (exhausted()) return refuse("exceeds the memory allowed for a file's patterns");
  RE2::Options options(RE2::Quiet);
  options.set_max_mem(kPatternMemory);
  auto expression = std::make_unique<RE2>("(.*\\.)?(" + pattern + ")$", options);
  instructions_ += expression->ok() ? static_cast<std::uint64_t>(expression->ProgramSize())
                                    : kPatternMemory / kInstructionBytes;
  if (!expression->ok()) {
    return refuse("cannot be run in linear time: " + quote(expression->error()));
  }
  patterns_.push_back({pattern, value, has_letter_escape(pattern), std::move(expression)});
  return {};
}

bool ModulePatterns::exhausted() const noexcept { return instructions_ > kMaxInstructions; }

Result<double> ModulePatterns::find(std::string_view path, double otherwise) const {
  if (patterns_.empty()) return otherwise;
  if (path.size() > kMaxPathBytes) {
    return Status(StatusCode::unsupported,
                  "the module path " + quote(path) + " has " + std::to_string(path.size()) +
                      " bytes, the most for patterns is " + std::to_string(kMaxPathBytes));
  }
  const bool ascii = is_ascii(path);
  const re2::StringPiece text(path.data(), path.size());
  for (const Pattern& pattern : patterns_) {
    if (pattern.ascii_only && !ascii) {
      return Status(StatusCode::unsupported, "the pattern " + quote(pattern.text) +
                                                 " with an escape cannot be run on " + quote(path) +
                                                 ", which is not ASCII");
    }
    work_ += static_cast<std::uint64_t>(pattern.expression->ProgramSize()) * (path.size() + 1);
    if (work_ > kMaxWork) {
      return Status(StatusCode::unsupported, "the pattern " + quote(pattern.text) +
                                                 " exceeds the work allowed for a file's patterns");
    }
    if (pattern.expression->Match(text, 0, path.size(), RE2::ANCHOR_START, nullptr, 0)) {
      return pattern.value;
    }
  }
  // PEFT falls back to looking the path itself up as a key.
  for (const Pattern& pattern : patterns_) {
    if (pattern.text == path) return pattern.value;
  }
  return otherwise;
}

}  // namespace detail
RANKFOLD_NAMESPACE_END
