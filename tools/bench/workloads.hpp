// The points of a workloads file (bench/workloads.json), checked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rankfold/addressing.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/problem.hpp"

namespace rankfold::tools {

/// One target, one batch. For token t with slot a >= 0 and each slice i:
/// y[t, i] += scale * B[a, i] (A[a, i] x[t]).
struct Workload {
  enum class Kind { serve, moe, train };
  std::string name;
  Kind kind = Kind::serve;
  std::int64_t in = 0;
  std::vector<std::int64_t> out;  ///< a width a slice
  std::int32_t rank = 0;
  std::int64_t tokens = 0;
  std::int32_t adapters = 1;
  std::vector<std::int32_t> token_slots;  ///< serve: [tokens], -1 = no adapter
  std::int64_t min_bytes = 0;             ///< each used weight once, x once, y read and written
  std::int64_t flops = 0;

  // moe
  std::int32_t experts = 1;
  std::int32_t top_k = 1;
  XRows x_rows = XRows::own;
  // train
  bool backward = false;
};

struct Workloads {
  std::string path;
  DType dtype = DType::bf16;
  float scale = 1.0f;
  std::vector<Workload> points;
};

/// Throws CommandError: exit 2 when the file cannot be read, 3 when it is malformed; the text names
/// the file, the point and the field.
Workloads read_workloads(const std::string& path);

/// The file to use when the user names none: share/rankfold/workloads.json beside the folder of the
/// running command, else bench/workloads.json in the current folder. Throws CommandError (exit 2).
std::string default_workloads_path();

/// The table of the point's target.
TableShape table_shape(const Workload& point, DType dtype);
/// What the backend is asked about points that are not timed.
Problem problem_of(const Workload& point, DType dtype);

}  // namespace rankfold::tools
