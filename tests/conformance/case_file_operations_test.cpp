// Case files of experts and training: every expectation is compared, wrong answers are found
// through a file, and what the files of these operations cannot mean is refused by name.
#include <doctest/doctest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "case_file_draft.hpp"
#include "rankfold/safetensors.hpp"

namespace rankfold::conformance {

namespace {

// A case of the table as a file in memory, to be changed.
struct Draft {
  std::map<std::string, std::string> attributes;
  std::map<std::string, testing::HostTensor> tensors;

  explicit Draft(const std::string& name) {
    const TemporaryFile file;
    REQUIRE(write_case_file(name, 1, file.path).ok());
    const auto read = Safetensors::read(file.path);
    REQUIRE(read.ok());
    for (const SafetensorsMetadata& pair : read->metadata()) attributes[pair.key] = pair.value;
    for (const SafetensorsEntry& entry : read->entries()) {
      testing::HostTensor tensor(entry.dtype, {entry.sizes, entry.sizes + entry.num_dims});
      if (entry.bytes > 0) std::memcpy(tensor.bytes.data(), entry.data, entry.bytes);
      tensors[entry.name] = tensor;
    }
  }

  CaseResult run(Mutation mutation = Mutation::none) const {
    return run_draft(attributes, tensors, mutation);
  }
  void refused(const std::string& named) const { check_refused(run(), named); }
};

constexpr const char* kCases[] = {
    "shrink_experts/routing/gather/token/skewed",
    "expand_experts/routing/grouped/own/skewed",
    "apply_experts/routing/grouped/token/skewed",
    "apply_experts/window/gather/own/13_31_bound40_overwrite",
    "forward/dropout/half/tokens",
    "forward_embedding/tokens/exact/T7",
    "backward/outputs/dx_da_db_dbias_ds/no_h",
    "backward/modes/gradients_accumulate_dx_accumulate_weights",
    "backward_embedding/outputs/da_db_ds/h_given",
};

}  // namespace

TEST_CASE("every expectation of every operation is compared") {
  for (const char* name : kCases) {
    CAPTURE(name);
    const Draft draft(name);
    REQUIRE(draft.run().verdict == Verdict::passed);
    int expectations = 0;
    for (const auto& named : draft.tensors) {
      const std::string& tensor = named.first;  // clang 14 lets no lambda see a binding
      const auto& value = named.second;
      if (tensor.rfind("expect.", 0) != 0) continue;
      ++expectations;
      // Somewhere the output is specified: a wrong value there must be found.
      bool found = false;
      for (std::int64_t i = 0; i < value.count() && !found; ++i) {
        Draft wrong = draft;
        wrong.tensors[tensor].set(i, value.get(i) * 1.01 + 1);
        const CaseResult result = wrong.run();
        found = result.verdict == Verdict::failed &&
                result.message.find(tensor.substr(7) + ":") != std::string::npos;
      }
      CHECK_MESSAGE(found, tensor);
    }
    CHECK(expectations > 0);
  }
}

TEST_CASE("wrong variants of experts and training are found through a file") {
  for (const auto& variant : {std::pair{kCases[0], Mutation::adds_expert_base},
                              {kCases[0], Mutation::x_rows_swapped},
                              {kCases[1], Mutation::slot_of_row},
                              {kCases[2], Mutation::writes_past_last_offset},
                              {kCases[3], Mutation::zeroes_outside_window},
                              {kCases[3], Mutation::forgets_row_weight},
                              {kCases[4], Mutation::mask_of_next_column},
                              {kCases[4], Mutation::undropped_forward},
                              {kCases[5], Mutation::scaled_h},
                              {kCases[6], Mutation::transposed_da},
                              {kCases[6], Mutation::unscaled_dbias},
                              {kCases[7], Mutation::gradients_always_overwritten},
                              {kCases[7], Mutation::forgets_token_weight_in_backward},
                              {kCases[8], Mutation::da_by_position}}) {
    CAPTURE(variant.first);
    CHECK(Draft(variant.first).run(variant.second).verdict == Verdict::failed);
  }
}

TEST_CASE("attributes of dropout, windows and modes reach the call") {
  const auto changes = [](const char* name, const std::string& key, const std::string& value) {
    Draft draft(name);
    REQUIRE(draft.attributes.count(key) == 1);
    draft.attributes[key] = value;
    CHECK_MESSAGE(draft.run().verdict == Verdict::failed, name, " ", key);
  };
  changes(kCases[0], "expert_base", "1");
  changes(kCases[0], "x_rows", "own");
  changes(kCases[3], "row_begin", "14");
  changes(kCases[3], "row_end", "30");
  changes(kCases[4], "seed", "8");
  changes(kCases[4], "row_base", "1");
  changes(kCases[4], "dropout_p", "0.25");
  changes(kCases[7], "accumulate", "0");
}

TEST_CASE("what files of experts and training cannot mean is refused by name") {
  const auto with = [](const char* name, const std::string& key, const std::string& value) {
    Draft draft(name);
    draft.attributes[key] = value;
    return draft;
  };
  with(kCases[0], "mode", "scatter").refused("mode");
  with(kCases[0], "x_rows", "both").refused("x_rows");
  with(kCases[0], "top_k", "-1").refused("top_k");
  with(kCases[0], "outputs", "dx").refused("outputs");
  with(kCases[6], "outputs", "dx,dw").refused("outputs");
  with(kCases[6], "outputs", "da,").refused("outputs");
  with(kCases[6], "accumulate", "2").refused("accumulate");
  with(kCases[6], "seed", "-1").refused("seed");
  with(kCases[6], "outputs", "da").refused("tensor dx");
  with(kCases[8], "outputs", "dx,da,db").refused("outputs");
  with(kCases[8], "dropout_p", "0.5").refused("dropout_p");

  Draft offsets(kCases[2]);
  offsets.tensors["expert_offsets"].set(1, 1000);
  offsets.refused("expert_offsets[1]");
  Draft tokens(kCases[2]);
  tokens.tensors["row_tokens"].set(0, 500);
  tokens.refused("row_tokens[0]");
  Draft missing(kCases[7]);
  missing.tensors.erase("da.0.0");
  missing.refused("da.0.0");
  Draft stray(kCases[6]);
  stray.tensors["da.0.0"] = testing::HostTensor(DType::f32, {8, 52});
  stray.refused("da.0.0");
  Draft refused(kCases[4]);
  for (const char* name : {"expect.y", "expect.h"}) refused.tensors.erase(name);
  refused.attributes["dropout_p"] = "1";
  refused.attributes["expect_status"] = "invalid_argument";
  CHECK(refused.run().verdict == Verdict::passed);
}

TEST_CASE("a small file of experts or of training that asks for much is refused by name") {
  const auto with = [](const char* name, const std::string& key, const std::string& value) {
    Draft draft(name);
    draft.attributes[key] = value;
    return draft;
  };
  for (const char* name : kCases) {
    CAPTURE(name);
    with(name, "max_rank", "2147483647").refused("max_rank is 2147483647");
    with(name, "y_mode", std::string(5000, 'x')).refused("accumulate or overwrite");
  }
  for (const char* name : {kCases[0], kCases[2], kCases[3], kCases[4], kCases[6]}) {
    with(name, "x_row_stride", "1099511627776").refused("x_row_stride is 1099511627776");
  }
  for (const char* name : {kCases[1], kCases[3], kCases[4], kCases[6], kCases[8]}) {
    with(name, "y_row_stride", "1099511627776").refused("y_row_stride is 1099511627776");
  }
  with(kCases[0], "mode", std::string(5000, 'x')).refused("grouped or gather");
  with(kCases[4], "seed", std::string(5000, 'x')).refused("decimal number");
  with(kCases[6], "outputs", std::string(5000, 'x')).refused("dx,da,db,dbias");

  // Gradients of a vocabulary that no tensor of the file is as wide as.
  with(kCases[8], "vocab", "1099511627776").refused("da.");
  // Rows of no bytes.
  Draft rows(kCases[6]);
  rows.tensors.erase("token_slots");
  rows.attributes["addressing"] = "uniform";
  rows.attributes["uniform_slot"] = "0";
  rows.tensors["dy"] = testing::HostTensor(DType::f32, {std::int64_t{1} << 40, 0});
  rows.refused("the list of rows");
  Draft columns(kCases[6]);
  columns.tensors["x"] = testing::HostTensor(DType::f32, {0, std::int64_t{1} << 40});
  std::erase_if(columns.tensors, [](const auto& tensor) {
    return tensor.first.rfind("a.", 0) == 0 || tensor.first.rfind("b.", 0) == 0;
  });
  columns.refused(" columns");
  // Experts of no slot.
  Draft experts(kCases[0]);
  experts.tensors["scalings"] = testing::HostTensor(DType::f32, {0, std::int64_t{1} << 30, 1});
  experts.refused("experts");
}

TEST_CASE("files of experts and training whose shapes do not go together fail") {
  const auto fails = [](const Draft& draft) { CHECK(draft.run().verdict == Verdict::failed); };
  Draft none(kCases[0]);
  none.attributes["top_k"] = "0";
  fails(none);
  Draft many(kCases[0]);
  many.attributes["top_k"] = "1";
  fails(many);
  Draft lost(kCases[1]);  // its slots are tokens', and no row says of which
  REQUIRE(lost.tensors.count("token_slots") == 1);
  lost.tensors.erase("row_tokens");
  fails(lost);
  for (const char* name : {kCases[2], kCases[4], kCases[6]}) {
    Draft wide(name);
    for (const char* tensor : {"y", "dy"}) {
      if (wide.tensors.count(tensor) == 0) continue;
      testing::HostTensor& value = wide.tensors[tensor];
      value = testing::HostTensor(value.dtype, {value.rows(), 1});
    }
    fails(wide);
  }
  Draft narrow(kCases[1]);
  narrow.tensors["h"] = testing::HostTensor(DType::f32, {narrow.tensors["h"].rows(), 1});
  fails(narrow);
  for (const char* name : {kCases[0], kCases[4], kCases[6]}) {
    Draft no_row(name);
    no_row.attributes["x_row_stride"] = "0";
    no_row.refused("tensor x has another row");
    no_row.tensors["x"] = testing::HostTensor(DType::f32, {0, no_row.tensors["x"].columns()});
    no_row.refused("which x_row_stride 0 gives to all");
  }
}

}  // namespace rankfold::conformance
