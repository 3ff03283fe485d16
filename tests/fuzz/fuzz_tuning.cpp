// Arbitrary bytes as a tuning file.
#include <cstdint>
#include <string_view>

#include "expect.hpp"
#include "rankfold/tuning.hpp"

using rankfold::Op;
using rankfold::Strategy;
using rankfold::TuningTable;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const rankfold::StrategyInfo strategies[] = {
      {Op::apply_linear, Strategy::gemv, "", "default; splits x2, 4 tiles"},
      {Op::apply_experts, Strategy::experts_sorted, "", "default"},
      {Op::backward, Strategy::tensor_core, "", "default; chunks x2"}};
  const rankfold::TuningTarget target{"cuda", "NVIDIA H200", 1, 0};
  for (const bool looks_up : {true, false}) {
    const auto table = TuningTable::parse(text, target, looks_up ? strategies : nullptr, 3);
    if (!table.ok()) {
      fuzz::expect_refusal(table.status());
      continue;
    }
    fuzz::expect(table->size() >= 0 && table->num_others() >= 0, "entries are counted");
    rankfold::Problem problem;
    problem.op = Op::apply_linear;
    const rankfold::TunedChoice* const choice = table->find(problem);
    if (choice == nullptr || !looks_up) continue;
    fuzz::expect(choice->configuration >= 1 && choice->configuration <= 2,
                 "an entry names a configuration that there is");
  }
  return 0;
}
