// Case files: every call of the table survives the round trip, wrong answers are found through a
// file as well, and files that cannot be meant are refused by naming what is wrong.
#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "call_spec.hpp"
#include "case.hpp"
#include "case_file_draft.hpp"

namespace rankfold::conformance {

namespace {

struct Tensor {
  DType dtype;
  std::vector<std::int64_t> sizes;
  std::vector<double> values;
};

// A hand-made file of rank 1: y = 1 + 2 * (x . a) b for two rows, the second without adapter.
struct Draft {
  std::map<std::string, std::string> attributes = {
      {"format", "rankfold-case-1"}, {"op", "apply_linear"}, {"out_slices", "2"}};
  std::map<std::string, Tensor> tensors = {{"x", {DType::f32, {2, 3}, {1, 2, 3, 4, 5, 6}}},
                                           {"y", {DType::f32, {2, 2}, {1, 1, 7, 8}}},
                                           {"token_slots", {DType::i32, {2}, {0, -1}}},
                                           {"scalings", {DType::f32, {1, 1}, {2}}},
                                           {"a.0.0", {DType::f32, {1, 3}, {1, 0, -1}}},
                                           {"b.0.0", {DType::f32, {2, 1}, {3, 4}}},
                                           {"expect.y", {DType::f64, {2, 2}, {-11, -15, 7, 8}}}};

  CaseResult run(Mutation mutation = Mutation::none) const {
    std::map<std::string, testing::HostTensor> written;
    for (const auto& [name, tensor] : tensors) {
      testing::HostTensor& values = written[name] = {tensor.dtype, tensor.sizes};
      for (std::size_t i = 0; i < tensor.values.size(); ++i) {
        values.set(static_cast<std::int64_t>(i), tensor.values[i]);
      }
    }
    return run_draft(attributes, written, mutation);
  }
};

void check_refused(const Draft& draft, const std::string& named) {
  conformance::check_refused(draft.run(), named);
}

}  // namespace

TEST_CASE("every call of the table survives the round trip through a file") {
  const TemporaryFile file;
  NaiveBackend backend;
  int written = 0;
  for (const Case& one : all_cases()) {
    if (!one.build || one.info.slow) continue;
    const std::string name = one.info.name;
    CAPTURE(name);
    const Status status = write_case_file(name, 1, file.path);
    REQUIRE_MESSAGE(status.ok(), status.message());
    const CaseResult result = run_case_file(backend, file.path, {});
    CHECK_MESSAGE(result.verdict == Verdict::passed, result.message);
    ++written;
  }
  CHECK(written > 500);
}

TEST_CASE("wrong answers are found through a file") {
  const TemporaryFile file;
  for (const auto& [name, mutation] :
       {std::pair{"apply_linear/tokens/T7", Mutation::next_slot},
        {"apply_linear/tokens/T7", Mutation::zeroes_skipped_rows},
        {"apply_linear/tokens/T33", Mutation::ties_away},
        {"apply_linear/layout/strided/tokens", Mutation::dense_x},
        {"apply_linear/layout/strided/tokens", Mutation::dense_y},
        {"apply_linear/accumulation/f32_in256", Mutation::tf32},
        {"expand/rank/mixed/random", Mutation::h_stride_of_rank},
        {"gather_shrink/vocabulary/E2_i64", Mutation::clamps_id},
        {"group_tokens/mixed/T33_slots1", Mutation::unstable_grouping}}) {
    const std::string label = name;
    CAPTURE(label);
    REQUIRE(write_case_file(name, 1, file.path).ok());
    NaiveBackend backend(mutation);
    const CaseResult result = run_case_file(backend, file.path, {});
    CHECK(result.verdict == Verdict::failed);
    CHECK(result.repeat.find("--case " + file.path) != std::string::npos);
  }
  CHECK(write_case_file("no/such/case", 1, file.path).code() == StatusCode::invalid_argument);
  CHECK(write_case_file("backend/name", 1, file.path).code() == StatusCode::invalid_argument);
}

TEST_CASE("a hand-made file is judged by what it expects") {
  CHECK(Draft{}.run().verdict == Verdict::passed);
  CHECK(Draft{}.run(Mutation::zeroes_skipped_rows).verdict == Verdict::failed);

  Draft wrong;
  wrong.tensors["expect.y"].values[1] = -15.001;
  CHECK(wrong.run().verdict == Verdict::failed);
  wrong.attributes["tolerance"] = "0.01";
  CHECK(wrong.run().verdict == Verdict::passed);
  wrong.attributes["tolerance"] = "exact";
  CHECK(wrong.run().verdict == Verdict::failed);

  Draft bits;
  bits.tensors["expect.y"].dtype = DType::f32;
  CHECK(bits.run().verdict == Verdict::passed);
  bits.tensors["expect.y"].values[0] = -11.000001;
  CHECK(bits.run().verdict == Verdict::failed);
  bits.attributes["tolerance"] = "spec";
  CHECK(bits.run().verdict == Verdict::passed);

  Draft untouched;  // the exact value is the oracle's to give, not the file's, where nothing may
                    // write
  untouched.tensors["expect.y"].values[2] = 7.5;
  CHECK(untouched.run().verdict == Verdict::failed);

  Draft nothing;
  nothing.tensors.erase("expect.y");
  CHECK(nothing.run().verdict == Verdict::passed);
  CHECK(nothing.run(Mutation::writes_past_workspace).verdict == Verdict::failed);

  Draft rank_0;
  rank_0.tensors.erase("a.0.0");
  rank_0.tensors.erase("b.0.0");
  rank_0.tensors["expect.y"].values = {1, 1, 7, 8};
  CHECK(rank_0.run().verdict == Verdict::passed);
}

TEST_CASE("a wrong expectation fails, however little wrong, where nothing is added to y") {
  Draft draft;
  draft.tensors["expect.y"].values[2] = 7.000001;
  CHECK(draft.run().verdict == Verdict::failed);
  draft.attributes["tolerance"] = "1e-3";
  CHECK(draft.run().verdict == Verdict::passed);

  Draft zero;
  zero.attributes["y_mode"] = "overwrite";
  zero.tensors["expect.y"].values = {-12, -16, 0, 0};
  CHECK(zero.run().verdict == Verdict::passed);
  zero.tensors["expect.y"].values[3] = 1e-6;
  CHECK(zero.run().verdict == Verdict::failed);

  Draft kept;
  kept.tensors["y"].values[2] = kept.tensors["expect.y"].values[2] = std::nan("");
  CHECK(kept.run().verdict == Verdict::passed);
}

TEST_CASE("an expectation that is not finite allows nothing more") {
  Draft infinite;
  infinite.tensors["y"].values[0] = HUGE_VAL;
  infinite.tensors["expect.y"].values[0] = HUGE_VAL;
  CHECK(infinite.run().verdict == Verdict::passed);
  for (const double wrong : {-HUGE_VAL, 1.0, std::nan("")}) {
    Draft draft = infinite;
    draft.tensors["expect.y"].values[0] = wrong;
    CHECK(draft.run().verdict == Verdict::failed);
  }
  infinite.tensors["expect.y"].values[1] = -15.1;
  CHECK(infinite.run().verdict == Verdict::failed);
}

TEST_CASE("group_tokens: what a file expects of it is its defined part, all of it") {
  Draft group;
  group.attributes = {{"format", "rankfold-case-1"}, {"op", "group_tokens"}, {"num_slots", "3"}};
  group.tensors = {{"token_slots", {DType::i32, {5}, {2, -1, 0, 2, 3}}},
                   {"expect.token_order", {DType::i32, {3}, {2, 0, 3}}},
                   {"expect.segment_offsets", {DType::i32, {3}, {0, 1, 3}}},
                   {"expect.segment_slots", {DType::i32, {2}, {0, 2}}},
                   {"expect.num_segments", {DType::i32, {1}, {2}}}};
  CHECK(group.run().verdict == Verdict::passed);
  for (const auto& array : {std::pair{"expect.token_order", std::vector<std::int64_t>{2, 4, 5}},
                            {"expect.segment_offsets", {2, 5}},
                            {"expect.segment_slots", {1, 4}},
                            {"expect.num_segments", {0, 2}}}) {
    const std::string name = array.first;  // clang 14 lets no lambda see a binding
    for (const std::int64_t size : array.second) {
      CAPTURE(name);
      CAPTURE(size);
      Draft draft = group;
      draft.tensors[name].sizes = {size};
      draft.tensors[name].values.resize(static_cast<std::size_t>(size), 1);
      CHECK(draft.run().verdict == Verdict::failed);
    }
  }
  // Room for one segment more: what is in it is nobody's.
  Draft whole = group;
  whole.tensors["expect.segment_offsets"] = {DType::i32, {4}, {0, 1, 3, 77}};
  whole.tensors["expect.segment_slots"] = {DType::i32, {3}, {0, 2, -9}};
  CHECK(whole.run().verdict == Verdict::passed);
  whole.tensors["expect.segment_slots"].values[1] = 1;
  CHECK(whole.run().verdict == Verdict::failed);

  Draft empty = group;
  empty.tensors = {{"token_slots", {DType::i32, {0}, {}}},
                   {"expect.token_order", {DType::i32, {0}, {}}},
                   {"expect.segment_offsets", {DType::i32, {1}, {0}}},
                   {"expect.segment_slots", {DType::i32, {0}, {}}},
                   {"expect.num_segments", {DType::i32, {1}, {0}}}};
  CHECK(empty.run().verdict == Verdict::passed);
  empty.tensors["expect.num_segments"].values[0] = 1;
  CHECK(empty.run().verdict == Verdict::failed);

  for (const auto& attribute : {std::pair{"strategy", "auto"},
                                {"batch_invariant", "1"},
                                {"y_mode", "overwrite"},
                                {"x_row_stride", "9"},
                                {"y_row_stride", "9"},
                                {"addressing", "tokens"}}) {
    CAPTURE(attribute.first);
    Draft draft = group;
    draft.attributes[attribute.first] = attribute.second;
    CHECK(draft.run().verdict == Verdict::passed);
  }
  group.attributes["strategy"] = "grouped";
  check_refused(group, "attribute strategy");
  group.attributes["strategy"] = "auto";
  group.attributes["addressing"] = "uniform";
  check_refused(group, "attribute addressing");
}

TEST_CASE("shrink: one row of x stands for as many as the rest of the file has") {
  Draft tokens;
  tokens.attributes = {{"format", "rankfold-case-1"}, {"op", "shrink"}, {"x_row_stride", "0"}};
  tokens.tensors.erase("y");
  tokens.tensors.erase("b.0.0");
  tokens.tensors.erase("expect.y");
  tokens.tensors["x"] = {DType::f32, {1, 3}, {1, 2, 3}};
  tokens.tensors["expect.h"] = {DType::f64, {2, 1}, {-2, 99}};  // row 1 has no adapter
  CHECK(tokens.run().verdict == Verdict::passed);

  Draft uniform = tokens;
  uniform.attributes["addressing"] = "uniform";
  uniform.attributes["uniform_slot"] = "0";
  uniform.tensors.erase("token_slots");
  uniform.tensors["expect.h"].values = {-2, -2};
  CHECK(uniform.run().verdict == Verdict::passed);
  uniform.tensors["expect.h"].values[1] = -3;
  CHECK(uniform.run().verdict == Verdict::failed);

  Draft grouped = tokens;
  grouped.attributes["addressing"] = "grouped";
  grouped.tensors.erase("token_slots");
  grouped.tensors["token_order"] = {DType::i32, {2}, {1, 0}};
  grouped.tensors["segment_offsets"] = {DType::i32, {2}, {0, 1}};
  grouped.tensors["segment_slots"] = {DType::i32, {1}, {0}};
  grouped.tensors["num_segments"] = {DType::i32, {1}, {1}};
  grouped.tensors["expect.h"].values = {99, -2};
  CHECK(grouped.run().verdict == Verdict::passed);

  Draft stored = tokens;  // dense, as other tensors
  stored.tensors["x"] = {DType::f32, {2, 3}, {1, 2, 3, 1, 2, 3}};
  CHECK(stored.run().verdict == Verdict::passed);
  stored.tensors["x"].values[5] = 4;
  check_refused(stored, "tensor x has another row 1");
}

TEST_CASE("attributes of a hand-made file reach the call") {
  Draft uniform;
  uniform.attributes["addressing"] = "uniform";
  uniform.attributes["uniform_slot"] = "0";
  uniform.tensors.erase("token_slots");
  uniform.tensors["expect.y"].values = {-11, -15, -5, -8};
  CHECK(uniform.run().verdict == Verdict::passed);

  Draft grouped;
  grouped.attributes["addressing"] = "grouped";
  grouped.tensors.erase("token_slots");
  grouped.tensors["token_order"] = {DType::i32, {2}, {1, 0}};
  grouped.tensors["segment_offsets"] = {DType::i32, {3}, {0, 1, 9}};
  grouped.tensors["segment_slots"] = {DType::i32, {2}, {0, 5}};
  grouped.tensors["num_segments"] = {DType::i32, {1}, {1}};
  grouped.tensors["expect.y"].values = {1, 1, -5, -8};
  CHECK(grouped.run().verdict == Verdict::passed);
  grouped.tensors["token_order"].values[0] = 2;
  check_refused(grouped, "token_order[0]");

  Draft options;
  options.attributes["y_mode"] = "overwrite";
  options.attributes["batch_invariant"] = "1";
  options.attributes["strategy"] = "general";
  options.attributes["x_row_stride"] = "7";
  options.attributes["y_row_stride"] = "5";
  options.attributes["max_rank"] = "4";
  options.tensors["token_weights"] = {DType::f32, {2}, {0.5, 3}};
  options.tensors["expect.y"].values = {-6, -8, 0, 0};
  CHECK(options.run().verdict == Verdict::passed);

  Draft broadcast;
  broadcast.attributes["x_row_stride"] = "0";
  broadcast.tensors["x"] = {DType::f32, {1, 3}, {1, 2, 3}};
  CHECK(broadcast.run().verdict == Verdict::passed);
}

TEST_CASE("a file may expect a refusal") {
  Draft stride;
  stride.tensors.erase("expect.y");
  stride.attributes["y_row_stride"] = "1";
  stride.attributes["expect_status"] = "invalid_argument";
  CHECK(stride.run().verdict == Verdict::passed);
  stride.attributes["expect_status"] = "unsupported";
  CHECK(stride.run().verdict == Verdict::failed);
  stride.attributes.erase("expect_status");
  CHECK(stride.run().verdict == Verdict::failed);

  Draft strategy;
  strategy.attributes["strategy"] = "tensor_core";
  strategy.attributes["expect_status"] = "unsupported";
  CHECK(strategy.run().verdict == Verdict::passed);
  strategy.attributes["strategy"] = "general";
  CHECK(strategy.run().verdict == Verdict::failed);

  Draft rows;  // E1
  rows.tensors["token_slots"] = {DType::i32, {5}, {0, 0, 0, 0, 0}};
  rows.attributes["expect_status"] = "invalid_argument";
  CHECK(rows.run().verdict == Verdict::passed);
}

TEST_CASE("what a file cannot mean is refused by name") {
  const auto with_attribute = [](const std::string& key, const std::string& value) {
    Draft draft;
    draft.attributes[key] = value;
    return draft;
  };
  check_refused(with_attribute("format", "rankfold-case-2"), "rankfold-case-1");
  check_refused(with_attribute("op", "apply_magic"), "apply_magic");
  check_refused(with_attribute("top_k", "2"), "attribute top_k");
  check_refused(with_attribute("out_slices", "1,1"), "out_slices");
  check_refused(with_attribute("out_slices", "3"), "b.0.0");
  check_refused(with_attribute("out_slices", "2x"), "out_slices");
  check_refused(with_attribute("y_mode", "add"), "y_mode");
  check_refused(with_attribute("strategy", "magic"), "strategy");
  check_refused(with_attribute("batch_invariant", "2"), "batch_invariant");
  check_refused(with_attribute("max_rank", "0"), "max_rank");
  check_refused(with_attribute("tolerance", "loose"), "tolerance");
  for (const char* value : {"inf", "-inf", "nan", "-1", "1e999", ""}) {
    check_refused(with_attribute("tolerance", value), "tolerance");
  }
  check_refused(with_attribute("expect_status", "ok"), "expect_status");
  // Long and hostile values leave room for the rest of the text.
  check_refused(with_attribute("y_mode", std::string(5000, 'x')), "accumulate or overwrite");
  check_refused(with_attribute(std::string(5000, 'x'), "1"), "means nothing to apply_linear");
  // A small file that asks for much.
  check_refused(with_attribute("x_row_stride", "1099511627776"), "x_row_stride is 1099511627776");
  check_refused(with_attribute("y_row_stride", "1073741824"), "y_row_stride is 1073741824");
  check_refused(with_attribute("max_rank", "2147483647"), "max_rank is 2147483647");
  check_refused(with_attribute("addressing", "none"), "addressing");
  check_refused(with_attribute("addressing", "uniform"), "uniform_slot");

  const auto with_tensor = [](const std::string& name, Tensor tensor) {
    Draft draft;
    draft.tensors[name] = std::move(tensor);
    return draft;
  };
  check_refused(with_tensor("expect.h", {DType::f64, {2, 1}, {0, 0}}), "expect.h");
  check_refused(with_tensor("dy", {DType::f32, {2, 2}, {}}), "tensor dy");
  check_refused(with_tensor("a.0.1", {DType::f32, {1, 3}, {}}), "a.0.1");
  check_refused(with_tensor("a.0.0", {DType::f32, {1, 4}, {}}), "a.0.0");
  check_refused(with_tensor("a.0.0", {DType::f64, {1, 3}, {}}), "a.0.0");
  check_refused(with_tensor("a.0.0", {DType::f32, {3}, {}}), "a.0.0");
  check_refused(with_tensor("b.0.0", {DType::f32, {2, 2}, {}}), "b.0.0");
  check_refused(with_tensor("bias.0.0", {DType::f32, {3}, {}}), "bias.0.0");
  check_refused(with_tensor("bias.0.0", {DType::f16, {2}, {}}), "bias.0.0");
  check_refused(with_tensor("token_slots", {DType::i64, {2}, {}}), "token_slots");
  check_refused(with_tensor("token_weights", {DType::f32, {3}, {}}), "token_weights");
  check_refused(with_tensor("expect.y", {DType::f64, {2, 3}, {}}), "expect.y");
  check_refused(with_tensor("expect.y", {DType::bf16, {2, 2}, {}}), "expect.y");
  Draft no_format;
  no_format.attributes.erase("format");
  check_refused(no_format, "format is missing");
  Draft no_row = with_attribute("x_row_stride", "0");
  no_row.tensors["x"] = {DType::f32, {0, 3}, {}};
  check_refused(no_row, "tensor x has shape [0, 3]");
  Draft grouping;
  grouping.tensors = {{"token_slots", {DType::i32, {2}, {0, 1}}}};
  grouping.attributes = {{"format", "rankfold-case-1"}, {"op", "group_tokens"}};
  grouping.attributes["num_slots"] = "2";
  CHECK(grouping.run().verdict == Verdict::passed);
  grouping.attributes["num_slots"] = "2147483647";
  check_refused(grouping, "num_slots");
  Draft infinite;  // an infinity among the inputs allows nothing
  infinite.tensors["scalings"].values = {std::numeric_limits<double>::infinity()};
  CHECK(infinite.run().verdict == Verdict::failed);
  Draft missing;
  missing.tensors.erase("b.0.0");
  check_refused(missing, "b.0.0");
  missing.tensors.erase("x");
  check_refused(missing, "tensor x");
  NaiveBackend backend;
  CHECK(run_case_file(backend, "/no/such/file", {}).verdict == Verdict::failed);
}

TEST_CASE("operations of later versions answer with the backend's unsupported") {
  Draft later;
  later.attributes["op"] = "backward_experts";
  check_refused(later, "unsupported");
  later.attributes["expect_status"] = "unsupported";
  CHECK(later.run().verdict == Verdict::passed);
}

}  // namespace rankfold::conformance
