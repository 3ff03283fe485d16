// Tuning: which strategy and configuration were fastest on one device, as `rankfold tune` measured
// them. RANKFOLD_TUNING names the file; a backend reads it once, when it is made, and looks into it
// where a call leaves the strategy and the configuration to the backend. For authors of backends
// and for the command; a host sets the variable and nothing else. The file: docs/tuning.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <type_traits>

#include "rankfold/backend.hpp"
#include "rankfold/export.hpp"
#include "rankfold/problem.hpp"
#include "rankfold/status.hpp"

RANKFOLD_NAMESPACE_BEGIN

inline constexpr const char* kTuningVariable = "RANKFOLD_TUNING";

/// What entries are for: those of another device, or of other kernels, are left aside.
struct TuningTarget {
  const char* backend = "";  ///< "cuda"
  const char* device = "";   ///< DeviceDescription::name
  std::int32_t kernels = 0;  ///< BackendDescription::kernels
  std::int32_t reserved = 0;
};
static_assert(std::is_trivially_copyable_v<TuningTarget> &&
              std::is_standard_layout_v<TuningTarget>);

/// What an entry says.
struct TunedChoice {
  Strategy strategy = Strategy::automatic;
  std::int32_t configuration = 0;  ///< 1 + index in StrategyInfo::configurations
};

/// The entries of one target, immutable; copies share them. An empty one has no entry.
class RANKFOLD_EXPORT TuningTable {
 public:
  TuningTable() noexcept;
  TuningTable(const TuningTable&) noexcept;
  TuningTable& operator=(const TuningTable&) noexcept;
  ~TuningTable();

  /// The entries of the text that are for the target. `strategies`: what the backend lists; names
  /// of strategies and configurations are looked up there. Null: they are not looked up, and the
  /// entries are good for counting alone.
  /// Errors: malformed_file ("line 7: ..."), out_of_memory.
  static Result<TuningTable> parse(std::string_view text, const TuningTarget& target,
                                   const StrategyInfo* strategies, int num_strategies) noexcept;
  /// The same of the file that RANKFOLD_TUNING names; an empty table where the variable is not set
  /// or empty. Errors name the variable, its value and the cure: invalid_argument (the file cannot
  /// be read), malformed_file, out_of_memory.
  static Result<TuningTable> from_environment(const TuningTarget& target,
                                              const StrategyInfo* strategies,
                                              int num_strategies) noexcept;

  /// The entry of the problem, or null. Never one for batch_invariant, whose bits must not follow
  /// the batch, nor where the call names a strategy or a configuration. Allocates nothing.
  const TunedChoice* find(const Problem& problem) const noexcept;

  /// Entries for the target, and entries of the text that are for others.
  int size() const noexcept;
  int num_others() const noexcept;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

/// The first line of a tuning file that this release reads and writes.
inline constexpr const char* kTuningHeader = "rankfold-tuning 1";
/// The problem's side of an entry, zero-terminated: operation, addressing, dtypes, shape and,
/// rounded up to powers of two, rows and segments. Problems of equal text share an entry. Returns
/// the bytes of the whole text without its zero; cut where that is capacity or more.
RANKFOLD_EXPORT std::size_t write_tuning_key(const Problem& problem, char* out,
                                             std::size_t capacity) noexcept;
/// The line that stands before the entries of a target.
RANKFOLD_EXPORT std::size_t write_tuning_target(const TuningTarget& target, char* out,
                                                std::size_t capacity) noexcept;

RANKFOLD_NAMESPACE_END
