// What an adapter will look like in the pool: checked before anything is reserved.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "pool/convert.hpp"
#include "rankfold/adapter.hpp"
#include "rankfold/adapter_table.hpp"
#include "rankfold/export.hpp"
#include "rankfold/pool.hpp"
#include "rankfold/status.hpp"
#include "rankfold/target_spec.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

/// One target of the pool.
struct PoolTarget {
  std::string key;
  TargetKind kind = TargetKind::linear;
  TableShape shape;
  std::int64_t first_entry = 0;  ///< in a slot
};

/// The targets, and how many entries a slot has over all of them.
struct PoolLayout {
  std::vector<PoolTarget> targets;
  std::int64_t slot_entries = 0;
};

/// Errors: invalid_argument.
Result<PoolLayout> make_layout(std::span<const TargetSpec> targets, const PoolOptions& options);

/// One matrix that goes into the arena. Views of the same memory share one.
struct PlannedMatrix {
  HostMatrix source;
  DType dtype = DType::f32;  ///< in the arena
  std::uint64_t bytes = 0;   ///< without rounding
  std::int32_t target = 0;   ///< for messages
  char name = 'A';           ///< 'A', 'B' or 'b' (bias)
};

/// One entry of the slot, with matrices in place of pointers.
struct PlannedEntry {
  std::int64_t index = 0;  ///< in the slot
  std::int32_t rank = 0;
  float scaling = 0;
  std::int64_t in_limit = 0;
  std::size_t a = 0;
  std::size_t b = 0;
  std::size_t bias = kNone;
  static constexpr std::size_t kNone = ~std::size_t{0};
};

struct Plan {
  std::vector<PlannedMatrix> matrices;
  std::vector<std::uint64_t> sizes;  ///< of the matrices, rounded
  std::vector<PlannedEntry> entries;
  std::uint64_t weight_bytes = 0;   ///< without rounding
  std::uint64_t rounded_bytes = 0;  ///< what the arena must give
};

/// Checks every binding against the layout and asks the backend about the targets touched.
/// Errors: invalid_argument, unsupported.
Result<Plan> make_plan(const LoraBackend& backend, const PoolLayout& layout,
                       const PoolOptions& options, std::span<const AdapterBinding> bindings);

}  // namespace detail
RANKFOLD_NAMESPACE_END
