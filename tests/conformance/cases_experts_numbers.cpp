// Banks of experts: numbers that cancel, and rows and weights that hold NaN or infinity.
#include <cmath>
#include <limits>
#include <string>

#include "cases_experts.hpp"

namespace rankfold::conformance {

using testing::Fill;
using testing::HostCall;

namespace {

void add_numbers(CaseList& list) {
  for (const DType dtype : kFloats) {
    CallSpec spec = small_experts(Op::apply_experts, ExpertMode::grouped, XRows::own);
    spec.fill = Fill::cancelling;
    spec.x = spec.y = spec.a = spec.b = dtype;
    spec.in = 256;
    spec.out = {64};
    spec.num_experts = 2;
    spec.num_slots = 2;
    spec.ranks = {256};
    spec.global_experts = 0;
    spec.x_scale = dtype == DType::f16 ? 4e-3 : 1.0;
    list.call("apply_experts/cancelling/" + std::string(rankfold::to_string(dtype)),
              "F7: terms that cancel need a float32 rank vector", spec);
    spec.fill = Fill::random;
    spec.x_scale = 1.0;
    spec.in = 1024;
    spec.ranks = {16};
    list.call("apply_experts/accumulation/" + std::string(rankfold::to_string(dtype)),
              "float32 products: TF32 and half accumulation fail this", spec);
  }
}

// NaN where no row that is computed may look: x and weights of rows without expert or adapter.
void poison_unused_rows(HostCall& call) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  std::vector<bool> used(static_cast<std::size_t>(call.x.rows()), false);
  const auto routes = testing::routes_of(call);
  for (std::size_t row = 0; row < routes.size(); ++row) {
    if (routes[row].slot >= 0) {
      used[static_cast<std::size_t>(routes[row].x_row)] = true;
    } else if (!call.experts.row_weights.empty()) {
      call.experts.row_weights[row] = std::numeric_limits<float>::quiet_NaN();
    }
  }
  for (std::int64_t i = 0; i < call.x.count(); ++i) {
    if (!used[static_cast<std::size_t>(i / call.x.columns())]) call.x.set(i, kNan);
  }
}

void add_isolation(CaseList& list) {
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    const std::string what = std::isnan(bad) ? "nan" : "inf";
    for (const ExpertMode mode : kModes) {
      for (const XRows x_rows : kXRows) {
        const std::string end = what + "/" + name_of(mode) + "/" + name_of(x_rows);
        CallSpec spec = small_experts(Op::apply_experts, mode, x_rows);
        spec.fill = Fill::random;
        spec.row_weights = true;
        spec.adjust_data = [bad](HostCall& call) {
          for (std::int64_t i = 0; i < call.x.columns(); ++i) {
            call.x.set(3 * call.x.columns() + i, bad);
          }
        };
        list.call("apply_experts/isolation/row_" + end, "a row's NaN reaches no other row", spec);
        spec.adjust_data = [bad](HostCall& call) {
          for (const std::int64_t expert : {0, 3}) {
            const auto e = static_cast<std::size_t>(testing::entry_index(call.shape, 1, expert, 0));
            for (testing::HostTensor* tensor : {&call.entries[e].a, &call.entries[e].b}) {
              for (std::int64_t i = 0; i < tensor->count(); i += 3) tensor->set(i, bad);
            }
          }
        };
        list.call("apply_experts/isolation/expert_" + end,
                  "an expert's NaN reaches no row of another", spec);
        if (std::isinf(bad)) continue;
        spec.adjust_data = poison_unused_rows;
        list.call("apply_experts/isolation/unused_" + end,
                  "F1, F3: rows that are not computed are not looked at", spec);
      }
    }
  }
}

}  // namespace

void add_experts_number_cases(CaseList& list) {
  add_numbers(list);
  add_isolation(list);
}

}  // namespace rankfold::conformance
