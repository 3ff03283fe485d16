#include "tuning_key.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdarg>
#include <cstdio>
#include <iterator>
#include <string>

#include "adapter/text.hpp"
#include "rankfold/tuning.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

namespace {

constexpr const char* kAddressing[] = {"tokens", "grouped", "uniform"};
constexpr const char* kModes[] = {"grouped", "gather"};
constexpr const char* kXRows[] = {"own", "token"};
constexpr const char* kOutputs[] = {"dx", "da", "db", "dbias", "ds", "h"};  // h: made again from x
static_assert(static_cast<int>(AddressingMode::tokens) == 0 &&
              static_cast<int>(AddressingMode::grouped) == 1 &&
              static_cast<int>(AddressingMode::uniform) == 2);
static_assert(static_cast<int>(ExpertMode::grouped) == 0 &&
              static_cast<int>(ExpertMode::gather) == 1);
static_assert(static_cast<int>(XRows::own) == 0 && static_cast<int>(XRows::token) == 1);
static_assert(kOutputDx == 1 && kRecomputesH == 1u << 5);

bool of_experts(Op op) noexcept {
  return op == Op::shrink_experts || op == Op::expand_experts || op == Op::apply_experts ||
         op == Op::backward_experts;
}
bool has_outputs(Op op) noexcept {
  return op == Op::backward || op == Op::backward_embedding || op == Op::backward_experts;
}

// The exponent of the power of two that n is rounded up to.
int bucket(std::int64_t n) noexcept {
  return n <= 1 ? 0 : static_cast<int>(std::bit_width(static_cast<std::uint64_t>(n - 1)));
}
std::int64_t rows_of(const Problem& problem) noexcept {
  return std::min(problem.bounds.active_rows, problem.bounds.rows);
}

// Writes as snprintf does, piece after piece.
class Text {
 public:
  Text(char* out, std::size_t capacity) noexcept : out_(out), capacity_(capacity) {}
  [[gnu::format(printf, 2, 3)]] void add(const char* format, ...) noexcept {
    const std::size_t room = length_ < capacity_ ? capacity_ - length_ : 0;
    std::va_list args;
    va_start(args, format);
    const int added = std::vsnprintf(room > 0 ? out_ + length_ : nullptr, room, format, args);
    va_end(args);
    if (added > 0) length_ += static_cast<std::size_t>(added);
  }
  std::size_t length() const noexcept { return length_; }

 private:
  char* out_;
  std::size_t capacity_;
  std::size_t length_ = 0;
};

Status malformed(const std::string& what) { return Status(StatusCode::malformed_file, what); }

// Takes the words of a key and puts them into a problem.
class KeyReader {
 public:
  explicit KeyReader(Problem& problem) : problem_(problem) {}

  Status read(std::string_view word) {
    const std::size_t equals = word.find('=');
    const std::string_view name = word.substr(0, equals);
    value_ = equals == std::string_view::npos ? std::string_view() : word.substr(equals + 1);
    const auto known = std::find(std::begin(kNames), std::end(kNames), name);
    if (equals == std::string_view::npos || known == std::end(kNames)) {
      return malformed(quote(word) + " is not a NAME=VALUE of an entry (docs/tuning.md)");
    }
    const unsigned bit = 1u << (known - std::begin(kNames));
    if ((seen_ & bit) != 0) return malformed(quote(name) + " stands there twice");
    seen_ |= bit;
    if (take(static_cast<int>(known - std::begin(kNames)))) return {};
    return malformed(quote(name) + " is " + quote(value_) + "; it should be " +
                     kShould[known - std::begin(kNames)]);
  }

  /// What every entry of the operation needs.
  Status finish() const {
    for (int i = 0; i < kNumNames; ++i) {
      const bool experts = i >= kMode && i <= kExperts;
      const bool optional = i == kOutputsName || i == kDropout;
      const bool needed = experts                ? of_experts(problem_.op)
                          : i == kAddressingName ? !of_experts(problem_.op)
                                                 : !optional;
      const bool legal = needed || i == kDropout || (i == kOutputsName && has_outputs(problem_.op));
      const bool seen = (seen_ >> i & 1) != 0;
      if (needed && !seen) return malformed(std::string(kNames[i]) + "= is missing");
      if (seen && !legal) {
        return malformed(std::string(kNames[i]) + "= is not for " + to_string(problem_.op));
      }
    }
    return {};
  }

 private:
  enum Name {
    kAddressingName,
    kMode,
    kXRowsName,
    kExperts,
    kX,
    kY,
    kA,
    kB,
    kIn,
    kOut,
    kMaxRank,
    kOutputsName,
    kDropout,
    kRows,
    kSegments,
    kNumNames
  };
  static constexpr const char* kNames[kNumNames] = {
      "addressing", "mode", "x_rows",   "experts", "x",       "y",    "a",       "b",
      "in",         "out",  "max_rank", "outputs", "dropout", "rows", "segments"};
  static constexpr const char* kDTypes = "f32, f16, bf16, i32 or i64";
  static constexpr const char* kShould[kNumNames] = {"tokens, grouped or uniform",
                                                     "grouped or gather",
                                                     "own or token",
                                                     "a number of experts",
                                                     kDTypes,
                                                     kDTypes,
                                                     kDTypes,
                                                     kDTypes,
                                                     "a number of columns",
                                                     "at most 16 widths with commas between them",
                                                     "a rank",
                                                     "some of dx,da,db,dbias,ds,h",
                                                     "0 or 1",
                                                     "a number of rows",
                                                     "a number of segments"};

  template <class Enum, std::size_t N>
  bool take_name(const char* const (&names)[N], Enum& to) const {
    const auto found = std::find(std::begin(names), std::end(names), value_);
    if (found == std::end(names)) return false;
    to = static_cast<Enum>(found - std::begin(names));
    return true;
  }
  bool take_dtype(DType& to) const {
    const auto dtype = parse_dtype(value_);
    if (!dtype.has_value() || *dtype == DType::f64) return false;
    to = *dtype;
    return true;
  }
  template <class Integer>
  bool take_count(std::int64_t most, Integer& to) const {
    std::int64_t value = 0;
    if (!parse_number(value_, most, &value)) return false;
    to = static_cast<Integer>(value);
    return true;
  }
  template <class Take>
  bool take_list(Take take) const {
    for (std::string_view rest = value_;;) {
      const std::size_t comma = rest.find(',');
      if (!take(rest.substr(0, comma))) return false;
      if (comma == std::string_view::npos) return true;
      rest.remove_prefix(comma + 1);
    }
  }
  bool take_out() {
    problem_.shape.num_slices = 0;
    return take_list([&](std::string_view width) {
      return problem_.shape.num_slices < kMaxSlices &&
             parse_number(width, kMost, &problem_.shape.out[problem_.shape.num_slices++]);
    });
  }
  bool take_outputs() {
    return take_list([&](std::string_view output) {
      const auto found = std::find(std::begin(kOutputs), std::end(kOutputs), output);
      if (found == std::end(kOutputs)) return false;
      problem_.outputs |= 1u << (found - std::begin(kOutputs));
      return true;
    });
  }
  bool take(int name) {
    constexpr std::int64_t kMostInt = 2147483647;
    TableShape& shape = problem_.shape;
    switch (name) {
      case kAddressingName:
        return take_name(kAddressing, problem_.addressing);
      case kMode:
        return take_name(kModes, problem_.expert_mode);
      case kXRowsName:
        return take_name(kXRows, problem_.x_rows);
      case kExperts:
        return take_count(kMostInt, shape.num_experts);
      case kX:
        return take_dtype(problem_.x_dtype);
      case kY:
        return take_dtype(problem_.y_dtype);
      case kA:
        return take_dtype(shape.a_dtype);
      case kB:
        return take_dtype(shape.b_dtype);
      case kIn:
        return take_count(kMost, shape.in);
      case kOut:
        return take_out();
      case kMaxRank:
        return take_count(kMostInt, shape.max_rank);
      case kOutputsName:
        return take_outputs();
      case kDropout: {
        std::int64_t on = 0;
        if (!parse_number(value_, 1, &on)) return false;
        problem_.dropout_p = on != 0 ? 0.5f : 0.0f;
        return true;
      }
      case kRows:
        if (!take_count(kMost, problem_.bounds.rows)) return false;
        problem_.bounds.active_rows = problem_.bounds.rows;
        return true;
      default:
        return take_count(kMost, problem_.bounds.segments);
    }
  }

  static constexpr std::int64_t kMost = std::int64_t{1} << 62;
  Problem& problem_;
  std::string_view value_;
  unsigned seen_ = 0;
};

}  // namespace

TuningKey make_tuning_key(const Problem& problem) noexcept {
  TuningKey key;
  const TableShape& shape = problem.shape;
  const bool experts = of_experts(problem.op);
  std::uint64_t packed = 0;
  const auto pack = [&](auto value, int bits) {
    packed = packed << bits | (static_cast<std::uint64_t>(value) & ((1u << bits) - 1));
  };
  pack(problem.op, 8);
  pack(experts ? 0 : static_cast<int>(problem.addressing), 4);
  pack(experts ? static_cast<int>(problem.expert_mode) : 0, 2);
  pack(experts ? static_cast<int>(problem.x_rows) : 0, 2);
  pack(problem.x_dtype, 4);
  pack(problem.y_dtype, 4);
  pack(shape.a_dtype, 4);
  pack(shape.b_dtype, 4);
  pack(shape.num_slices, 8);
  pack(has_outputs(problem.op) ? problem.outputs : 0, 8);
  pack(problem.dropout_p > 0.0f ? 1 : 0, 1);
  key.words[0] = packed;
  key.words[1] = static_cast<std::uint64_t>(shape.in);
  key.words[2] = static_cast<std::uint64_t>(static_cast<std::uint32_t>(shape.max_rank)) << 32 |
                 static_cast<std::uint32_t>(experts ? shape.num_experts : 1);
  key.words[3] = static_cast<std::uint64_t>(bucket(rows_of(problem))) << 8 |
                 static_cast<std::uint64_t>(bucket(problem.bounds.segments));
  const int slices = std::clamp(shape.num_slices, 0, kMaxSlices);
  for (int i = 0; i < slices; ++i) key.words[4 + i] = static_cast<std::uint64_t>(shape.out[i]);
  std::uint64_t hash = 0x9e3779b97f4a7c15u;
  for (int i = 0; i < 4 + slices; ++i) {
    hash = (hash ^ key.words[i]) * 0xff51afd7ed558ccdu;
    hash ^= hash >> 32;
  }
  key.hash = hash;
  return key;
}

std::string_view take_word(std::string_view& text) noexcept {
  const std::string_view word = text.substr(0, text.find(' '));
  text.remove_prefix(word.size());
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  return word;
}

bool parse_number(std::string_view text, std::int64_t most, std::int64_t* value) noexcept {
  if (text.empty() || text[0] < '0' || text[0] > '9') return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size() && *value <= most;
}

Result<Problem> parse_tuning_key(std::string_view text) {
  Problem problem;
  const std::string_view name = take_word(text);
  const auto op = parse_op(name);
  if (!op.has_value()) return malformed(quote(name) + " is not an operation");
  problem.op = *op;
  KeyReader reader(problem);
  while (!text.empty()) {
    if (Status status = reader.read(take_word(text)); !status.ok()) return status;
  }
  if (Status status = reader.finish(); !status.ok()) return status;
  return problem;
}

}  // namespace detail

std::size_t write_tuning_key(const Problem& problem, char* out, std::size_t capacity) noexcept {
  using namespace detail;
  const TableShape& shape = problem.shape;
  const auto power = [](std::int64_t n) { return std::int64_t{1} << bucket(n); };
  Text text(out, capacity);
  text.add("%s", to_string(problem.op));
  if (of_experts(problem.op)) {
    text.add(" mode=%s x_rows=%s experts=%d", kModes[static_cast<int>(problem.expert_mode) & 1],
             kXRows[static_cast<int>(problem.x_rows) & 1], shape.num_experts);
  } else {
    text.add(" addressing=%s", kAddressing[std::clamp(static_cast<int>(problem.addressing), 0, 2)]);
  }
  text.add(" x=%s y=%s a=%s b=%s in=%lld out=", to_string(problem.x_dtype),
           to_string(problem.y_dtype), to_string(shape.a_dtype), to_string(shape.b_dtype),
           static_cast<long long>(shape.in));
  for (int i = 0; i < std::clamp(shape.num_slices, 0, kMaxSlices); ++i) {
    text.add("%s%lld", i > 0 ? "," : "", static_cast<long long>(shape.out[i]));
  }
  text.add(" max_rank=%d", shape.max_rank);
  if (has_outputs(problem.op) && problem.outputs != 0) {
    const char* before = " outputs=";
    for (int i = 0; i < static_cast<int>(std::size(kOutputs)); ++i) {
      if ((problem.outputs >> i & 1) == 0) continue;
      text.add("%s%s", before, kOutputs[i]);
      before = ",";
    }
  }
  if (problem.dropout_p > 0.0f) text.add(" dropout=1");
  text.add(" rows=%lld segments=%lld", static_cast<long long>(power(rows_of(problem))),
           static_cast<long long>(power(problem.bounds.segments)));
  return text.length();
}

RANKFOLD_NAMESPACE_END
