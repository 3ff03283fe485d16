#include "rankfold/tuning.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "adapter/text.hpp"
#include "guard.hpp"
#include "tuning_key.hpp"

RANKFOLD_NAMESPACE_BEGIN

using detail::guarded;
using detail::quote;
using detail::TuningKey;

namespace {

struct Entry {
  TuningKey key;
  TunedChoice choice;
  int line = 0;
};

constexpr std::uintmax_t kMostBytes = std::uintmax_t{16} << 20;
constexpr std::string_view kArrow = " -> ";

Status malformed(int line, const std::string& what) {
  return Status(StatusCode::malformed_file, "line " + std::to_string(line) + ": " + what);
}

std::string_view trim(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") + 1 - first);
}

// The place of a name among "one; two; three", or -1.
int index_of(std::string_view names, std::string_view name) {
  for (int index = 0;; ++index) {
    const std::size_t end = names.find("; ");
    if (names.substr(0, end) == name) return index;
    if (end == std::string_view::npos) return -1;
    names.remove_prefix(end + 2);
  }
}

class Reader {
 public:
  Reader(const TuningTarget& target, const StrategyInfo* strategies, int num_strategies)
      : target_(target), strategies_(strategies), num_strategies_(num_strategies) {}

  Status read(std::string_view line, int number) {
    line_ = number;
    line = trim(line);
    if (line.empty() || line[0] == '#') return {};
    std::string_view rest = line;
    const std::string_view word = detail::take_word(rest);
    if (word == "rankfold-tuning") {
      has_header_ = true;
      in_target_ = has_target_ = false;
      if (line == kTuningHeader) return {};
      return malformed(line_, "the format is " + quote(rest) +
                                  "; this release of rankfold reads 1: run `rankfold tune` again");
    }
    if (!has_header_) {
      return malformed(line_, "it should be " + quote(kTuningHeader) + ", the first of the file");
    }
    if (word == "device") return read_target(rest);
    if (!has_target_) return malformed(line_, "a line \"device ...\" should stand before entries");
    return read_entry(line);
  }

  /// Sorts the entries by hash.
  Status finish() {
    if (!has_header_) {
      return malformed(1, "the file is empty; it should begin with " + quote(kTuningHeader));
    }
    std::stable_sort(entries.begin(), entries.end(),
                     [](const auto& a, const auto& b) { return a.key.hash < b.key.hash; });
    for (std::size_t i = 1; i < entries.size(); ++i) {
      for (std::size_t j = i; j-- > 0 && entries[j].key.hash == entries[i].key.hash;) {
        if (!(entries[j].key == entries[i].key)) continue;
        return malformed(entries[i].line, "the same problem as in line " +
                                              std::to_string(entries[j].line) +
                                              " (rows and segments count by powers of two)");
      }
    }
    return {};
  }

  std::vector<Entry> entries;
  int num_others = 0;

 private:
  // device BACKEND kernels=NUMBER NAME
  Status read_target(std::string_view rest) {
    const std::string_view backend = detail::take_word(rest);
    const std::string_view kernels = detail::take_word(rest);
    std::int64_t number = 0;
    constexpr std::string_view kKernels = "kernels=";
    if (backend.empty() || rest.empty() || kernels.substr(0, kKernels.size()) != kKernels ||
        !detail::parse_number(kernels.substr(kKernels.size()), 2147483647, &number)) {
      return malformed(line_, "it should be \"device BACKEND kernels=NUMBER NAME\"");
    }
    has_target_ = true;
    in_target_ = backend == target_.backend && rest == target_.device && number == target_.kernels;
    return {};
  }

  // PROBLEM -> STRATEGY: CONFIGURATION
  Status read_entry(std::string_view line) {
    line = line.substr(0, line.find(" #"));
    const std::size_t arrow = line.find(kArrow);
    const std::string_view use =
        arrow == std::string_view::npos ? std::string_view() : trim(line.substr(arrow + 4));
    const std::size_t colon = use.find(": ");
    if (colon == std::string_view::npos) {
      return malformed(line_, "it should be \"PROBLEM -> STRATEGY: CONFIGURATION\"");
    }
    const Result<Problem> problem = detail::parse_tuning_key(trim(line.substr(0, arrow)));
    if (!problem.ok()) return malformed(line_, problem.status().message());
    const std::string_view name = use.substr(0, colon);
    const auto strategy = parse_strategy(name);
    if (!strategy.has_value() || *strategy == Strategy::automatic) {
      return malformed(line_, quote(name) + " is not a strategy");
    }
    if (!in_target_) {
      ++num_others;
      return {};
    }
    TunedChoice choice{*strategy, 1};
    if (strategies_ != nullptr) {
      if (Status status = look_up(*problem, use.substr(colon + 2), choice); !status.ok()) {
        return status;
      }
    }
    entries.push_back({detail::make_tuning_key(*problem), choice, line_});
    return {};
  }

  Status look_up(const Problem& problem, std::string_view configuration, TunedChoice& choice) {
    for (int i = 0; i < num_strategies_; ++i) {
      const StrategyInfo& info = strategies_[i];
      if (info.op != problem.op || info.strategy != choice.strategy) continue;
      const int index = index_of(info.configurations, configuration);
      if (index < 0) {
        return malformed(line_, std::string(to_string(choice.strategy)) + " of " +
                                    to_string(problem.op) + " has no configuration " +
                                    quote(configuration) +
                                    "; `rankfold list --kernels` lists them");
      }
      choice.configuration = index + 1;
      return {};
    }
    return malformed(line_, std::string("the ") + target_.backend + " backend has no strategy " +
                                to_string(choice.strategy) + " for " + to_string(problem.op));
  }

  const TuningTarget& target_;
  const StrategyInfo* strategies_;
  int num_strategies_;
  int line_ = 0;
  bool has_header_ = false;
  bool has_target_ = false;
  bool in_target_ = false;
};

}  // namespace

struct TuningTable::State {
  std::vector<Entry> entries;  // by hash
  int num_others = 0;
};

TuningTable::TuningTable() noexcept = default;
TuningTable::TuningTable(const TuningTable&) noexcept = default;
TuningTable& TuningTable::operator=(const TuningTable&) noexcept = default;
TuningTable::~TuningTable() = default;

Result<TuningTable> TuningTable::parse(std::string_view text, const TuningTarget& target,
                                       const StrategyInfo* strategies,
                                       int num_strategies) noexcept {
  return guarded([&]() -> Result<TuningTable> {
    Reader reader(target, strategies, num_strategies);
    int number = 0;
    while (!text.empty()) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      if (Status status = reader.read(text.substr(0, end), ++number); !status.ok()) return status;
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    if (Status status = reader.finish(); !status.ok()) return status;
    TuningTable table;
    table.state_ =
        std::make_shared<const State>(State{std::move(reader.entries), reader.num_others});
    return table;
  });
}

Result<TuningTable> TuningTable::from_environment(const TuningTarget& target,
                                                  const StrategyInfo* strategies,
                                                  int num_strategies) noexcept {
  return guarded([&]() -> Result<TuningTable> {
    const char* const path = std::getenv(kTuningVariable);
    if (path == nullptr || *path == '\0') return TuningTable();
    const auto refuse = [&](const Status& status, const char* cure) {
      return Status(status.code(), std::string(kTuningVariable) + " is " + quote(path) + ": " +
                                       status.message() + "; " + cure);
    };
    const auto bytes = detail::read_file(path, kMostBytes);
    if (!bytes.ok()) return refuse(bytes.status(), "name a file of `rankfold tune`, or unset it");
    const std::string_view text(reinterpret_cast<const char*>(bytes->data()), bytes->size());
    Result<TuningTable> table = parse(text, target, strategies, num_strategies);
    if (!table.ok()) {
      return refuse(table.status(),
                    "correct the file, make it again with `rankfold tune`, or unset "
                    "the variable");
    }
    return table;
  });
}

const TunedChoice* TuningTable::find(const Problem& problem) const noexcept {
  if (state_ == nullptr || state_->entries.empty()) return nullptr;
  const CallOptions& options = problem.options;
  if (options.strategy != Strategy::automatic || options.configuration != 0 ||
      options.batch_invariant == BatchInvariant::on) {
    return nullptr;
  }
  const TuningKey key = detail::make_tuning_key(problem);
  const auto& entries = state_->entries;
  auto at = std::lower_bound(
      entries.begin(), entries.end(), key.hash,
      [](const Entry& entry, std::uint64_t hash) { return entry.key.hash < hash; });
  for (; at != entries.end() && at->key.hash == key.hash; ++at) {
    if (at->key == key) return &at->choice;
  }
  return nullptr;
}

int TuningTable::size() const noexcept {
  return state_ == nullptr ? 0 : static_cast<int>(state_->entries.size());
}
int TuningTable::num_others() const noexcept { return state_ == nullptr ? 0 : state_->num_others; }

std::size_t write_tuning_target(const TuningTarget& target, char* out,
                                std::size_t capacity) noexcept {
  const int length = std::snprintf(out, capacity, "device %s kernels=%d %s", target.backend,
                                   target.kernels, target.device);
  return length > 0 ? static_cast<std::size_t>(length) : 0;
}

RANKFOLD_NAMESPACE_END
