// The workspace of an operation: where each part stands, from host-known bounds alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "rankfold/arguments.hpp"
#include "rankfold/problem.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

/// Rows that share an entry: rows order[begin], ..., order[begin + count - 1].
struct RowGroup {
  std::int64_t entry = 0;  ///< index of the first slice's entry
  std::int32_t begin = 0;
  std::int32_t count = 0;
};

/// Byte offsets from the first 64-byte boundary of the workspace. Each part is monotone in every
/// bound, and so is their sum.
struct WorkspacePlan {
  std::size_t order = 0;     ///< int32 [rows]
  std::size_t bare = 0;      ///< int32 [rows]: rows without adapter
  std::size_t marks = 0;     ///< uint8 [rows]
  std::size_t groups = 0;    ///< RowGroup [rows]
  std::size_t counters = 0;  ///< int32 [num_slots]
  std::size_t h = 0;         ///< float [rows, num_slices * max_rank]; operations that make h and y
  std::size_t training = 0;  ///< the parts of TrainingPlan; backward
  std::size_t scratch = 0;   ///< float [lanes, scratch_floats]
  std::size_t scratch_floats = 0;
  int lanes = 1;
  std::size_t bytes = 0;
  bool too_large = false;  ///< no memory is enough; the rest says nothing
};

/// Most rows of a group: a panel of h and y for them stays in the cache. A multiple of the kernels'
/// tiles.
inline constexpr std::int64_t kMaxGroupRows = 240;

/// Row numbers are int32.
inline constexpr std::int64_t kMaxRows = std::numeric_limits<std::int32_t>::max();

WorkspacePlan plan_workspace(const Problem& problem) noexcept;

/// Floats of scratch that the kernels need for one lane.
std::int64_t shrink_scratch_floats(std::int64_t in, std::int64_t max_rank) noexcept;
std::int64_t expand_scratch_floats(std::int64_t max_rank) noexcept;

/// Parts of a workspace as pointers.
struct WorkspaceParts {
  std::int32_t* order;
  std::int32_t* bare;
  std::uint8_t* marks;
  RowGroup* groups;
  std::int32_t* counters;
  float* h;
  std::byte* training;
  float* scratch;
  std::size_t scratch_floats;
  int lanes;

  float* lane_scratch(int lane) const noexcept {
    return scratch + static_cast<std::size_t>(lane) * scratch_floats;
  }
};
WorkspaceParts parts_of(const WorkspacePlan& plan, const Workspace& workspace) noexcept;

}  // namespace reference
RANKFOLD_NAMESPACE_END
