#include "configurations.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <iterator>
#include <string>

#include "kernels/backward_tensor.hpp"
#include "kernels/pairs.hpp"
#include "plan.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

constexpr std::int64_t kGroupColumns = 64;  // of K, what a split has at least
constexpr std::int64_t kTileColumns = 256;  // of y, a tile of the expand of few rows
constexpr std::int64_t kStepBytes = 128;    // of a row of y, a step of the expand of many rows
constexpr std::int64_t kMostManySplits = 16;

// A configuration is one of each list of its strategy; the first entry is the built-in choice.
struct Splits {
  const char* name;
  int times, over;
};
constexpr Splits kSplits[] = {{"", 1, 1}, {"splits x1/2", 1, 2}, {"splits x2", 2, 1}};

struct Tiles {
  const char* name;
  int tiles;
};
constexpr Tiles kTiles[] = {{"", 0}, {"1 tile", 1}, {"2 tiles", 2}, {"4 tiles", 4}, {"8 tiles", 8}};

struct ManyShrink {
  const char* name;
  int rows, cluster, times, over;
};
constexpr ManyShrink kManyShrinks[] = {{"", 0, 0, 1, 1},
                                       {"splits x1/2", 0, 0, 1, 2},
                                       {"splits x2", 0, 0, 2, 1},
                                       {"no clusters", 0, 1, 1, 1},
                                       {"clusters of 2", 0, 2, 1, 1},
                                       {"shrink 64 rows", 64, 0, 1, 1},
                                       {"shrink 128 rows", 128, 0, 1, 1}};
struct ManyExpand {
  const char* name;
  int rows, steps;
};
constexpr ManyExpand kManyExpands[] = {{"", 0, 0},
                                       {"expand 64 rows", 64, 0},
                                       {"expand 128 rows", 128, 0},
                                       {"4 steps", 0, 4},
                                       {"8 steps", 0, 8}};

struct Experts {
  const char* name;
  int value;
};
constexpr Experts kSizes[] = {{"", -1},
                              {"few rows", 0},
                              {"some rows", 1},
                              {"many rows", 2},
                              {"row blocks", kRowBlocks}};  // of sorted rows alone
constexpr Experts kParts[] = {{"", 0}, {"1 part", 1}, {"2 parts", 2}, {"4 parts", 4}};

struct Chunks {
  const char* name;
  Ratio ratio;
};
constexpr Chunks kDyChunks[] = {{"", {1, 1}}, {"dy chunks x1/2", {1, 2}}, {"dy chunks x2", {2, 1}}};
constexpr Chunks kXChunks[] = {{"", {1, 1}}, {"x chunks x1/2", {1, 2}}, {"x chunks x2", {2, 1}}};

enum class Space { none, splits, tiles, splits_and_tiles, many_rows, gathered, sorted, backward };
Space space_of(Op op, Strategy strategy) noexcept {
  switch (strategy) {
    case Strategy::gemv:
    case Strategy::routed:
    case Strategy::grouped:
      if (op == Op::shrink) return Space::splits;
      if (op == Op::apply_linear || op == Op::forward) return Space::splits_and_tiles;
      return op == Op::group_tokens ? Space::none : Space::tiles;
    case Strategy::tensor_core:
      return op == Op::backward ? Space::backward : Space::many_rows;
    case Strategy::experts_gathered:
      return Space::gathered;
    case Strategy::experts_sorted:
      return Space::sorted;
    default:
      return Space::none;
  }
}

// The places in both lists of a space, by the number of a configuration.
struct Places {
  int first = 0;
  int second = 0;
};
int second_size(Space space) noexcept {
  switch (space) {
    case Space::tiles:
    case Space::splits_and_tiles:
      return static_cast<int>(std::size(kTiles));
    case Space::many_rows:
      return static_cast<int>(std::size(kManyExpands));
    case Space::gathered:
    case Space::sorted:
      return static_cast<int>(std::size(kParts));
    case Space::backward:
      return static_cast<int>(std::size(kXChunks));
    default:
      return 1;
  }
}
int first_size(Space space) noexcept {
  switch (space) {
    case Space::splits:
    case Space::splits_and_tiles:
      return static_cast<int>(std::size(kSplits));
    case Space::many_rows:
      return static_cast<int>(std::size(kManyShrinks));
    case Space::gathered:
      return static_cast<int>(std::size(kSizes)) - 1;
    case Space::sorted:
      return static_cast<int>(std::size(kSizes));
    case Space::backward:
      return static_cast<int>(std::size(kDyChunks));
    default:
      return 1;
  }
}
Places places(Space space, std::int32_t configuration) noexcept {
  const int index = std::max(configuration - 1, 0);
  return {index / second_size(space), index % second_size(space)};
}

std::string name_of(Space space, int configuration) {
  const Places at = places(space, configuration);
  const char* first = "";
  const char* second = "";
  switch (space) {
    case Space::splits:
    case Space::splits_and_tiles:
      first = kSplits[at.first].name;
      if (space == Space::splits_and_tiles) second = kTiles[at.second].name;
      break;
    case Space::tiles:
      second = kTiles[at.second].name;
      break;
    case Space::many_rows:
      first = kManyShrinks[at.first].name;
      second = kManyExpands[at.second].name;
      break;
    case Space::gathered:
    case Space::sorted:
      first = kSizes[at.first].name;
      second = kParts[at.second].name;
      break;
    case Space::backward:
      first = kDyChunks[at.first].name;
      second = kXChunks[at.second].name;
      break;
    case Space::none:
      break;
  }
  if (*first == '\0' && *second == '\0') return "default";
  const char* const between = *first != '\0' && *second != '\0' ? ", " : "";
  return std::string(first) + between + second;
}

std::string names_of(Space space) {
  std::string names;
  for (int i = 1; i <= first_size(space) * second_size(space); ++i) {
    if (i > 1) names += "; ";
    names += name_of(space, i);
  }
  return names;
}

// Not for this problem, since `why` (a number of it, and what that should be).
[[gnu::format(printf, 2, 3)]] Status decline(const Problem& problem, const char* why, ...) {
  char text[256];
  std::va_list args;
  va_start(args, why);
  std::vsnprintf(text, sizeof(text), why, args);
  va_end(args);
  return Status::format(StatusCode::unsupported,
                        "%s: options.configuration is %d; for this problem %s",
                        to_string(problem.op), problem.options.configuration, text);
}

Status split_few(const Problem& problem, const Splits& change, LinearPlan& plan) {
  if (change.times == change.over) return {};
  if (problem.dropout_p > 0.0f) return decline(problem, "nothing is split, since it has dropout");
  const std::int64_t columns = std::int64_t{problem.shape.num_slices} * problem.shape.max_rank;
  const std::int64_t splits = std::int64_t{plan.splits} * change.times / change.over;
  const std::int64_t most =
      std::min<std::int64_t>(fitting_splits(problem.bounds.rows, columns, splits),
                             std::max<std::int64_t>(problem.shape.in / kGroupColumns, 1));
  if (splits < 1 || splits > most) {
    return decline(problem, "K has %d splits; 1 to %" PRId64 " are possible", plan.splits, most);
  }
  plan.splits = static_cast<int>(splits);
  return {};
}

std::int64_t widest(const TableShape& shape) noexcept {
  std::int64_t width = 0;
  for (int i = 0; i < shape.num_slices; ++i) width = std::max(width, shape.out[i]);
  return width;
}

Status tile_few(const Problem& problem, const Tiles& change, LinearPlan& plan) {
  if (change.tiles == 0) return {};
  const std::int64_t tiles = (widest(problem.shape) + kTileColumns - 1) / kTileColumns;
  if (change.tiles > tiles) {
    return decline(problem, "the widest slice has %" PRId64 " tiles of 256 columns", tiles);
  }
  plan.tiles = change.tiles;
  return {};
}

Status shrink_many(const Problem& problem, const DeviceTraits& traits, const ManyShrink& change,
                   LinearPlan& plan) {
  PrefillPlan& prefill = plan.prefill;
  const std::int64_t columns = std::int64_t{problem.shape.num_slices} * problem.shape.max_rank;
  const std::int64_t chunks = (problem.shape.in + kGroupColumns - 1) / kGroupColumns;
  const std::int64_t most = std::clamp<std::int64_t>(chunks, 1, kMostManySplits);
  if (change.rows != 0) {
    if (change.rows == prefill.shrink_rows)
      return decline(problem, "that is the built-in choice of rows");
    if (problem.shape.a_dtype != DType::f32 && problem.shape.in % 8 != 0)
      return decline(problem, "a block has 64 rows (K is no multiple of eight)");
    if (change.rows > 64 && !prefill_shrink_takes(prefill_device(traits), change.rows))
      return decline(problem, "a block has too little shared memory");
    // As many blocks as before.
    const std::int64_t splits =
        change.rows > prefill.shrink_rows ? prefill.splits * 2 : prefill.splits / 2;
    prefill.splits = static_cast<int>(std::clamp<std::int64_t>(splits, 1, most));
    prefill.shrink_rows = change.rows;
    prefill.tile_parts = 1;
    if (prefill.splits % prefill.cluster != 0) prefill.cluster = 1;
  } else if (change.cluster != 0) {
    if (change.cluster == prefill.cluster)
      return decline(problem, "that is the built-in choice of clusters");
    if (prefill.splits % change.cluster != 0)
      return decline(problem, "K has %d splits, which clusters of %d do not divide", prefill.splits,
                     change.cluster);
    prefill.cluster = change.cluster;
  } else if (change.times != change.over) {
    const std::int64_t splits = std::int64_t{prefill.splits} * change.times / change.over;
    if (splits < 1 || splits > most || splits % prefill.cluster != 0)
      return decline(problem, "K has %d splits in clusters of %d; at most %" PRId64 " are possible",
                     prefill.splits, prefill.cluster, most);
    prefill.splits = static_cast<int>(splits);
  }
  if (fitting_splits(problem.bounds.rows, columns, prefill.partials()) < prefill.partials())
    return decline(problem, "%d partial sums of h are more than its workspace holds",
                   prefill.partials());
  plan.splits = prefill.partials();
  return {};
}

Status expand_many(const Problem& problem, const ManyExpand& change, LinearPlan& plan) {
  if (change.rows != 0) {
    if (change.rows == plan.prefill.expand_rows)
      return decline(problem, "that is the built-in choice of rows");
    if (problem.shape.b_dtype == DType::f32)
      return decline(problem, "a block has 128 rows (adapters of float32)");
    plan.prefill.expand_rows = change.rows;
  }
  if (change.steps != 0) {
    const std::int64_t columns = kStepBytes / static_cast<std::int64_t>(size_of(problem.y_dtype));
    const std::int64_t steps = (widest(problem.shape) + columns - 1) / columns;
    if (change.steps > steps)
      return decline(problem, "the widest slice has %" PRId64 " steps of 128 bytes", steps);
    plan.prefill.expand_steps = change.steps;
  }
  return {};
}

Status check_experts(const Problem& problem) {
  const ExpertsConfiguration chosen = experts_configuration(problem);
  if (chosen.size == 0 && (problem.shape.max_rank > 16 || problem.y_dtype == DType::f32)) {
    return decline(problem,
                   "few rows have no kernel of their own (max_rank over 16, or y float32)");
  }
  if (chosen.size == kRowBlocks) {
    const char* const reason = why_not_pairs(problem);
    return reason == nullptr ? Status() : decline(problem, "%s", reason);
  }
  const std::int64_t pairs = std::int64_t{problem.shape.num_slots} * problem.shape.num_experts;
  if (chosen.parts != 0 && problem.bounds.rows < pairs) {
    return decline(problem, "a block is made for each of %" PRId64 " rows, which has no parts",
                   problem.bounds.rows);
  }
  return {};
}

}  // namespace

const char* configuration_names(Op op, Strategy strategy) {
  static const std::string kNames[] = {
      names_of(Space::none),      names_of(Space::splits),
      names_of(Space::tiles),     names_of(Space::splits_and_tiles),
      names_of(Space::many_rows), names_of(Space::gathered),
      names_of(Space::sorted),    names_of(Space::backward)};
  return kNames[static_cast<int>(space_of(op, strategy))].c_str();
}

Status check_configuration(const Problem& problem, Strategy strategy) {
  const std::int32_t configuration = problem.options.configuration;
  if (configuration <= 1 && configuration >= 0) return {};
  const Space space = space_of(problem.op, strategy);
  const int count = first_size(space) * second_size(space);
  if (configuration < 0 || configuration > count) {
    return Status::format(
        StatusCode::unsupported,
        "%s: options.configuration is %d; %s has %d of them on cuda, so it should "
        "be 0 to %d",
        to_string(problem.op), configuration, to_string(strategy), count, count);
  }
  if (problem.options.batch_invariant == BatchInvariant::on) {
    return Status::format(StatusCode::unsupported,
                          "%s: options.configuration is %d; with batch_invariant, whose sums have "
                          "one order, it should be 0 or 1",
                          to_string(problem.op), configuration);
  }
  if (space == Space::gathered || space == Space::sorted) return check_experts(problem);
  if (space == Space::backward && !tile_backward(problem).has_configuration) {
    return decline(problem, "there would be no chunk of rows, or more than its workspace holds");
  }
  return {};
}

Result<LinearPlan> configure(const Problem& problem, const DeviceTraits& traits, LinearPlan plan) {
  if (Status status = check_configuration(problem, plan.strategy); !status.ok()) return status;
  const Space space = space_of(problem.op, plan.strategy);
  const Places at = places(space, problem.options.configuration);
  Status status;
  if (space == Space::many_rows) {
    status = shrink_many(problem, traits, kManyShrinks[at.first], plan);
    if (status.ok()) status = expand_many(problem, kManyExpands[at.second], plan);
  } else {
    if (space == Space::splits || space == Space::splits_and_tiles)
      status = split_few(problem, kSplits[at.first], plan);
    if (status.ok() && (space == Space::tiles || space == Space::splits_and_tiles))
      status = tile_few(problem, kTiles[at.second], plan);
  }
  if (!status.ok()) return status;
  return plan;
}

BackwardConfiguration backward_configuration(const Problem& problem) noexcept {
  const Places at = places(Space::backward, problem.options.configuration);
  if (at.first >= first_size(Space::backward)) return {};
  return {kDyChunks[at.first].ratio, kXChunks[at.second].ratio};
}

ExpertsConfiguration experts_configuration(const Problem& problem) noexcept {
  const Places at = places(Space::sorted, problem.options.configuration);
  if (at.first >= first_size(Space::sorted)) return {};
  return {kSizes[at.first].value, kParts[at.second].value};
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
