// backward where each product has several blocks of rows and of columns at once, which calls drawn
// at random are too small for.
#include <string>

#include "cases_training.hpp"
#include "check_call.hpp"

namespace rankfold::conformance {

using testing::Fill;

namespace {

constexpr std::uint32_t kAll = kOutputDx | kOutputDa | kOutputDb | kOutputDbias | kOutputDs;

struct Blocks {
  const char* name;
  std::vector<std::int64_t> out;
  std::int32_t rank;
};

CallSpec blocks_spec(const Blocks& blocks, AddressingForm form, DType dtype, bool accumulates) {
  CallSpec spec;
  spec.op = Op::backward;
  spec.x = spec.y = spec.a = spec.b = spec.dx = dtype;
  spec.fill = Fill::random;
  spec.tokens = 200;
  spec.in = 136;
  spec.out = blocks.out;
  spec.num_slots = 2;
  spec.ranks = {blocks.rank};
  spec.form = form;
  spec.uniform_slot = 0;
  spec.outputs = kAll;
  spec.bias = true;
  spec.gives_h = accumulates;
  spec.token_weights = true;
  spec.gradient_mode = accumulates ? YMode::accumulate : YMode::overwrite;
  spec.options.y_mode = accumulates ? YMode::accumulate : YMode::overwrite;
  return spec;
}

}  // namespace

void add_backward_block_cases(CaseList& list) {
  const Blocks kBlocks[] = {{"r64_out520", {520}, 64},
                            {"r40_out520", {520}, 40},
                            {"r16_out576_515", {576, 515}, 16},
                            {"r20_out512_64_8", {512, 64, 8}, 20},
                            {"r48_5_slices", {64, 128, 64, 24, 40}, 48}};
  for (const Blocks& blocks : kBlocks) {
    for (const auto& [form, form_name] : {std::pair{AddressingForm::tokens, "tokens"},
                                          {AddressingForm::grouped_by_host, "grouped"},
                                          {AddressingForm::uniform, "uniform"}}) {
      for (const bool accumulates : {false, true}) {
        const DType dtype =
            accumulates == (form == AddressingForm::grouped_by_host) ? DType::bf16 : DType::f16;
        CallSpec spec = blocks_spec(blocks, form, dtype, accumulates);
        const std::string name = std::string("backward/blocks/") + blocks.name + "/" + form_name +
                                 (accumulates ? "_accumulate" : "_overwrite");
        list.call(name, "chunks of rows and blocks of columns, several of each", spec);
        if (form != AddressingForm::uniform) continue;
        spec.x = spec.y = spec.a = spec.b = spec.dx = DType::bf16;
        list.call(name + "/bf16", "chunks of rows and blocks of columns, several of each", spec);
        spec.dx = DType::f32;
        spec.outputs &= ~kOutputDs;
        list.call(name + "/dx_f32", "the same where another kernel makes dx", spec);
      }
    }
    CallSpec shared = blocks_spec(blocks, AddressingForm::tokens, DType::bf16, false);
    shared.shared_a = SharedA::slices;
    shared.slots = SlotPattern::sorted;
    // No case file says that two slices share a gradient.
    list.scenario(std::string("backward/blocks/") + blocks.name + "/shared_a",
                  "slices that share A and da, and their sums stand in several launches",
                  [shared](Session& session) {
                    return check_call(session, build(shared, session.seed()), true);
                  });
  }
}

}  // namespace rankfold::conformance
