// The bench's results as lines of a table and as one JSON document.
#pragma once

#include "output.hpp"
#include "serve_point.hpp"

namespace rankfold::tools {

/// Machine, yardsticks and the head of the table.
void print_head(const LoraBackend& backend, const Workloads& workloads, const MachineLimits& limits,
                const Yardsticks& yardsticks, Output& out);
void print_point(const PointResult& point, Output& out);

Json bench_json(const LoraBackend& backend, const Workloads& workloads, const MachineLimits& limits,
                const Yardsticks& yardsticks, const std::vector<PointResult>& points);

}  // namespace rankfold::tools
