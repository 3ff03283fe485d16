// The points of a workloads file (bench/workloads.json), checked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rankfold/addressing.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/problem.hpp"
#include "routing.hpp"

namespace rankfold::tools {

/// One target, one batch. For token t with slot a >= 0 and each slice i:
/// y[t, i] += scale * B[a, i] (A[a, i] x[t]).
struct Workload {
  enum class Kind { serve, moe, train };
  std::string name;
  std::string group;  ///< "decode", "prefill", "moe", "train fwd", "train bwd", "off-grid"
  Kind kind = Kind::serve;
  std::int64_t in = 0;
  std::vector<std::int64_t> out;  ///< a width a slice
  std::int32_t rank = 0;          ///< the largest
  std::int64_t tokens = 0;
  std::int32_t adapters = 1;
  std::vector<std::int32_t> token_slots;  ///< [tokens], -1 = no adapter
  std::vector<std::int32_t> slot_ranks;   ///< [adapters], or empty: all `rank`
  std::int32_t table_rank = 0;            ///< max_rank of the table; 0: rank
  DType x_dtype = DType::bf16;            ///< of x, y, dy and dx
  DType weight_dtype = DType::bf16;       ///< of A and B
  float scale = 1.0f;
  std::int64_t min_bytes = 0;  ///< each used weight once, x once, y read and written
  std::int64_t flops = 0;

  // moe
  std::int32_t experts = 1;
  std::int32_t top_k = 1;
  XRows x_rows = XRows::own;
  bool mul_routed_weight = false;
  Routing routing;
  // train
  bool backward = false;

  std::int32_t rank_of(std::int32_t slot) const {
    return slot_ranks.empty() ? rank : slot_ranks[static_cast<std::size_t>(slot)];
  }
  /// Sum of out.
  std::int64_t columns() const;
  /// Rows of y: tokens, or routed rows.
  std::int64_t rows() const { return kind == Kind::moe ? tokens * top_k : tokens; }
  /// Rows of x.
  std::int64_t x_row_count() const {
    return kind == Kind::moe && x_rows == XRows::own ? rows() : tokens;
  }
  /// From here on the rows of a moe point come sorted by expert.
  bool sorted_by_expert() const { return tokens >= 1024; }
};

/// One row of y: what it is made of.
struct BatchRow {
  std::int32_t slot = -1;
  std::int32_t expert = 0;
  std::int64_t x_row = 0;
  std::int64_t token = 0;
  float weight = 1.0f;  ///< factor beside the point's scale
};
/// All rows of y, in their order in memory.
std::vector<BatchRow> batch_rows(const Workload& point);

struct Totals {
  double bytes = 0;  ///< exact below 2^53
  double flops = 0;
};
/// What the point must move (the definition of min_bytes) and compute.
Totals totals_of(const Workload& point);

struct Workloads {
  std::string path;
  std::vector<Workload> points;
};

/// Throws CommandError: exit 2 when the file cannot be read, 3 when it is malformed; the text names
/// the file, the point and the field.
Workloads read_workloads(const std::string& path);

/// A file that comes with the command: share/rankfold/NAME beside the folder of the running
/// command, else bench/NAME in the current folder; empty: neither is there.
std::string find_shared_file(const std::string& name);
/// The file to use when the user names none. Throws CommandError (exit 2).
std::string default_workloads_path();

/// The text of a file. Throws CommandError (exit 2: cannot be read, 3: over 64 MiB).
std::string read_text(const std::string& path, const char* what);

/// The table of the point's target.
TableShape table_shape(const Workload& point);

}  // namespace rankfold::tools
