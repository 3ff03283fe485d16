// The table: a line each second, and what it comes to.
#pragma once

#include "loader.hpp"
#include "server.hpp"

namespace swap_under_load {

/// A part of the run, without or with swapping.
struct Part {
  std::int64_t steps = 0;
  std::int64_t rows = 0;
  std::int64_t wrong_rows = 0;
  LoadCounts loads;
  std::vector<float> milliseconds;

  void add(const Part& other);
};

/// What the steps and the loads between two moments come to.
Part make_part(StepCounts steps, const LoadCounts& before, const LoadCounts& now);

void print_heading();
void print_line(const char* name, Part part);

}  // namespace swap_under_load
