// Which row uses which slot, in every form, and the options of a call.
#include <limits>
#include <string>

#include "case.hpp"

namespace rankfold::conformance {

using testing::Fill;
using testing::HostCall;

namespace {

constexpr Op kLinearOps[] = {Op::shrink, Op::expand, Op::apply_linear};
constexpr Op kAllOps[] = {Op::shrink, Op::expand, Op::apply_linear, Op::gather_shrink,
                          Op::apply_embedding};

CallSpec small(Op op) {
  CallSpec spec;
  spec.op = op;
  spec.tokens = 37;
  spec.in = 56;
  spec.out = {40};
  if (op == Op::expand || op == Op::apply_linear || op == Op::shrink) spec.out = {40, 24};
  spec.num_slots = 4;
  spec.ranks = {8, 3, 16, 8, 1};
  return spec;
}

// Segments as a host may give them: offsets and slots by hand, garbage past the defined part.
void set_segments(HostCall& call, const std::vector<std::int32_t>& offsets,
                  const std::vector<std::int32_t>& slots, bool reversed_rows = false) {
  auto& addressing = call.addressing;
  addressing.mode = AddressingMode::grouped;
  addressing.grouping = testing::Grouping::by_host;
  addressing.segment_offsets = offsets;
  addressing.segment_slots = slots;
  addressing.num_segments = static_cast<std::int32_t>(slots.size());
  addressing.token_order.resize(static_cast<std::size_t>(addressing.num_tokens));
  for (std::size_t i = 0; i < addressing.token_order.size(); ++i) {
    const std::size_t row = reversed_rows ? addressing.token_order.size() - 1 - i : i;
    addressing.token_order[i] = static_cast<std::int32_t>(row);
  }
  const auto covered = static_cast<std::size_t>(offsets.back());
  for (std::size_t i = covered; i < addressing.token_order.size(); ++i) {
    addressing.token_order[i] = i % 2 == 0 ? -5 : 0x7ead7ead;
  }
  // Entries past num_segments are never read.
  for (int extra = 0; extra < 3; ++extra) {
    addressing.segment_offsets.push_back(extra == 1 ? -9 : 0x7ead7ead);
    addressing.segment_slots.push_back(extra == 1 ? 0 : 0x7ead7ead);
  }
}

void add_segments(CaseList& list, const std::string& name, const std::string& about,
                  std::int64_t tokens, std::vector<std::int32_t> offsets,
                  std::vector<std::int32_t> slots, bool reversed_rows = false) {
  for (const Op op : kLinearOps) {
    CallSpec spec = small(op);
    spec.tokens = tokens;
    if (tokens > 1000) spec.in = 32;
    spec.adjust = [=](HostCall& call) { set_segments(call, offsets, slots, reversed_rows); };
    list.call(name_of(op) + "/segments/" + name, about, spec);
  }
}

void add_forms(CaseList& list) {
  for (const Op op : kAllOps) {
    for (const auto& [form, name] : {std::pair{AddressingForm::tokens, "tokens"},
                                     {AddressingForm::grouped_by_host, "grouped_by_host"},
                                     {AddressingForm::grouped_by_backend, "grouped_by_backend"},
                                     {AddressingForm::uniform, "uniform"}}) {
      for (const auto& [pattern, pattern_name] : {std::pair{SlotPattern::mixed, "mixed"},
                                                  {SlotPattern::sorted, "sorted"},
                                                  {SlotPattern::out_of_range, "out_of_range"},
                                                  {SlotPattern::none, "none"}}) {
        if (form == AddressingForm::uniform && pattern != SlotPattern::mixed) continue;
        CallSpec spec = small(op);
        spec.form = form;
        spec.slots = pattern;
        list.call(name_of(op) + "/addressing/" + name + "/" + pattern_name,
                  "C4: rows without adapter keep their bits, wherever they stand", spec);
      }
    }
    for (const std::int32_t slot : {-1, -7, 4, std::numeric_limits<std::int32_t>::min(),
                                    std::numeric_limits<std::int32_t>::max()}) {
      CallSpec spec = small(op);
      spec.form = AddressingForm::uniform;
      spec.uniform_slot = slot;
      list.call(name_of(op) + "/addressing/uniform/slot_" + std::to_string(slot),
                "a slot that is none: nothing changes", spec);
    }
    CallSpec none = small(op);
    none.slots = SlotPattern::none;
    none.active_rows_bound = 0;
    list.call(name_of(op) + "/addressing/active_rows_0", "C5: all rows without adapter", none);
    none.options.y_mode = YMode::overwrite;
    if (testing::makes_y(op)) {
      list.call(name_of(op) + "/addressing/active_rows_0_overwrite",
                "C5: overwriting still makes zeros", none);
    }
    CallSpec bound = small(op);
    bound.tokens = 6;
    bound.token_slots = {-1, 0, -1, 1, 0, -1};
    bound.active_rows_bound = 3;
    list.call(name_of(op) + "/addressing/C4_base_and_lora",
              "C4: unsorted rows of two adapters and none", bound);
  }
}

// More slots than what groups rows on a device may have room for, with every strategy.
void add_many_slots(CaseList& list) {
  for (const Op op :
       {Op::shrink, Op::expand, Op::apply_linear, Op::apply_embedding, Op::forward, Op::backward}) {
    for (const std::int64_t tokens : {64, 130}) {
      CallSpec spec = small(op);
      spec.tokens = tokens;
      spec.num_slots = 1100;
      spec.in = 40;
      spec.out = {24};
      spec.max_rank = 16;
      for (std::int64_t i = 0; i < tokens; ++i) {
        constexpr std::int32_t kSome[] = {1099, 1023, 1024, 0, -1, 1100, 1050, 1099};
        spec.token_slots.push_back(i % 2 == 0 ? kSome[i / 2 % 8]
                                              : static_cast<std::int32_t>(i * 397 % 1100));
      }
      list.call(name_of(op) + "/many_adapters/1100_slots/T" + number(tokens),
                "more slots than one launch groups", spec);
    }
  }
}

}  // namespace

void add_addressing_cases(CaseList& list) {
  add_forms(list);
  add_segments(list, "C8_empty", "C8: empty segments are ignored", 4, {0, 0, 4, 4, 4},
               {2, 1, 0, 3});
  add_segments(list, "C7_1_4095", "C7: skewed segments", 4096, {0, 1, 4096}, {0, 1});
  add_segments(list, "C7_0_1_0_4095", "C7: skewed and empty segments", 4096, {0, 0, 1, 1, 4096},
               {3, 0, 2, 1});
  add_segments(list, "C7_1_132", "C7: skewed segments", 133, {0, 1, 133}, {2, 0});
  add_segments(list, "repeated_slots", "a slot in several segments", 23, {0, 5, 6, 17, 20},
               {1, 0, 1, 1}, true);
  add_segments(list, "slots_out_of_range", "segments of slots that are none", 19, {0, 4, 8, 12, 16},
               {-1, 2, 4, std::numeric_limits<std::int32_t>::max()});
  add_segments(list, "none", "no segment at all", 5, {0}, {});
  add_segments(list, "one_row_each", "as many segments as rows", 9, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9},
               {0, 1, 2, 3, 0, 1, 2, 3, 0}, true);

  CallSpec many;
  many.tokens = 64;
  many.num_slots = 64;
  many.slots = SlotPattern::round_robin;
  many.ranks = {8, 16, 4, 1, 8};
  list.call("apply_linear/many_adapters/64_of_64/exact", "J6: an adapter for every row", many);
  many.fill = Fill::random;
  list.call("apply_linear/many_adapters/64_of_64/random", "J6: an adapter for every row", many);
  many.slots = SlotPattern::one;
  list.call("apply_linear/many_adapters/1_of_64/random", "J6: one adapter for all rows", many);
  many.num_slots = 1000;
  many.slots = SlotPattern::mixed;
  many.fill = Fill::exact;
  many.in = 40;
  many.out = {24};
  list.call("apply_linear/many_adapters/1000_slots/exact", "many slots, few rows", many);
  add_many_slots(list);
}

void add_option_cases(CaseList& list) {
  for (const Op op : {Op::expand, Op::apply_linear, Op::apply_embedding}) {
    for (const Fill fill : {Fill::exact, Fill::random}) {
      for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
        for (int flags = 1; flags < 16; ++flags) {
          const bool weights = (flags & 1) != 0, bias = (flags & 2) != 0;
          const bool overwrite = (flags & 4) != 0, invariant = (flags & 8) != 0;
          if (bias && op == Op::apply_embedding) continue;
          if (fill == Fill::random && dtype != DType::bf16 && flags != 15 && flags != 7) continue;
          CallSpec spec = small(op);
          spec.fill = fill;
          spec.x = spec.y = dtype;
          spec.token_weights = weights;
          spec.bias = bias;
          spec.options.y_mode = overwrite ? YMode::overwrite : YMode::accumulate;
          spec.options.batch_invariant = invariant ? BatchInvariant::on : BatchInvariant::off;
          std::string name = name_of(op) + "/options/";
          name += fill == Fill::exact ? "exact/" : "random/";
          name += rankfold::to_string(dtype);
          name += '/';
          if (weights) name += "weights_";
          if (bias) name += "bias_";
          if (overwrite) name += "overwrite_";
          if (invariant) name += "invariant_";
          name.pop_back();
          list.call(name, "options and optional tensors in all combinations", spec);
        }
      }
    }
  }
  for (const Op op : {Op::shrink, Op::gather_shrink}) {
    CallSpec spec = small(op);
    spec.options.batch_invariant = BatchInvariant::on;
    list.call(name_of(op) + "/options/invariant", "batch invariance changes no value", spec);
    spec.token_weights = true;
    spec.options.batch_invariant = BatchInvariant::off;
    list.call(name_of(op) + "/options/weights", "token weights do not reach h", spec);
  }
  CallSpec shared = small(Op::apply_linear);
  shared.shared_a = SharedA::slices;
  shared.out = {40, 16, 16};
  shared.ranks = {8};
  list.call("apply_linear/shared_a/exact", "slices of a slot share the pointer of A", shared);
  shared.op = Op::shrink;
  list.call("shrink/shared_a/exact", "slices of a slot share the pointer of A", shared);
}

void add_layout_cases(CaseList& list) {
  for (const Op op : kAllOps) {
    for (const AddressingForm form : {AddressingForm::tokens, AddressingForm::grouped_by_host}) {
      CallSpec spec = small(op);
      spec.form = form;
      const std::string end = form == AddressingForm::tokens ? "tokens" : "grouped";
      spec.x_gap = 3;
      spec.h_gap = 5;
      spec.y_gap = 7;
      spec.a_gap = 1;
      spec.b_gap = 9;
      spec.slot_gap = 2;
      list.call(name_of(op) + "/layout/strided/" + end,
                "NaN in every gap stays there and is not read", spec);
      spec.misalignment = 1;
      list.call(name_of(op) + "/layout/misaligned/" + end,
                "A5: addresses aligned to their element alone", spec);
      spec.x = spec.y = spec.a = spec.b = DType::f32;
      list.call(name_of(op) + "/layout/misaligned_f32/" + end,
                "A5: addresses aligned to their element alone", spec);
    }
  }
  for (const Op op : {Op::shrink, Op::apply_linear}) {
    CallSpec spec = small(op);
    spec.broadcast_x = true;
    list.call(name_of(op) + "/layout/broadcast_x", "row stride 0: one row of x for all", spec);
  }
  CallSpec wide = small(Op::apply_linear);
  wide.out = {8, 1, 16, 3, 8, 8, 2, 8, 8, 5, 8, 8, 8, 7, 8, 8};
  list.call("apply_linear/layout/16_slices", "the most slices that a target may have", wide);
}

}  // namespace rankfold::conformance
