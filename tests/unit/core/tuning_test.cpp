// The file that RANKFOLD_TUNING names: what it says, what is wrong with one, and what an operation
// finds in it.
#include "rankfold/tuning.hpp"

#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#ifdef RANKFOLD_COUNTS_ALLOCATIONS
#include "allocation_counter.hpp"
#endif

using namespace rankfold;

namespace {

constexpr TuningTarget kTarget{"gpu", "Fast Device, 8 units", 3, 0};
constexpr StrategyInfo kStrategies[] = {
    {Op::apply_linear, Strategy::gemv, "few rows", "default; splits x2; splits x2, 4 tiles"},
    {Op::apply_linear, Strategy::grouped, "all", "default; 2 tiles"},
    {Op::apply_experts, Strategy::experts_sorted, "all", "default; many rows"},
    {Op::backward, Strategy::tensor_core, "all", "default; x"},
};

Problem linear(std::int64_t rows, std::int64_t segments) {
  Problem problem;
  problem.op = Op::apply_linear;
  problem.addressing = AddressingMode::grouped;
  problem.shape = {
      .num_slots = 8, .num_slices = 2, .max_rank = 16, .in = 4096, .out = {4096, 1024}};
  problem.shape.a_dtype = problem.shape.b_dtype = problem.x_dtype = problem.y_dtype = DType::bf16;
  problem.bounds = {rows, rows, segments, rows};
  return problem;
}

std::string key(const Problem& problem) {
  char text[1024];
  REQUIRE(write_tuning_key(problem, text, sizeof(text)) < sizeof(text));
  return text;
}

const std::string kHead = "rankfold-tuning 1\ndevice gpu kernels=3 Fast Device, 8 units\n";
const std::string kLinear =
    "apply_linear addressing=grouped x=bf16 y=bf16 a=bf16 b=bf16 in=4096 out=4096,1024 max_rank=16 "
    "rows=64 segments=8";

Result<TuningTable> parse(const std::string& text) {
  return TuningTable::parse(text, kTarget, kStrategies, 4);
}

}  // namespace

TEST_CASE("an entry serves the problems of its shape, rows and segments by powers of two") {
  const auto table = parse("# made by hand\r\n" + kHead + "\n" + kLinear +
                           " -> gemv: splits x2, 4 tiles  # 4.5 us, 5.0 us\r\n");
  REQUIRE_MESSAGE(table.ok(), table.status().message());
  CHECK(table->size() == 1);
  CHECK(table->num_others() == 0);
  for (const std::int64_t rows : {33, 40, 64}) {
    for (const std::int64_t segments : {5, 8}) {
      const TunedChoice* const found = table->find(linear(rows, segments));
      REQUIRE(found != nullptr);
      CHECK(found->strategy == Strategy::gemv);
      CHECK(found->configuration == 3);
    }
  }
  CHECK(table->find(linear(32, 8)) == nullptr);
  CHECK(table->find(linear(65, 8)) == nullptr);
  CHECK(table->find(linear(64, 4)) == nullptr);
  CHECK(table->find(linear(64, 9)) == nullptr);
  Problem bounded = linear(500, 8);
  CHECK(table->find(bounded) == nullptr);
  bounded.bounds.active_rows = 64;  // rows with an adapter count
  CHECK(table->find(bounded) != nullptr);

  const auto changed = [&](auto&& change) {
    Problem problem = linear(64, 8);
    change(problem);
    return table->find(problem) == nullptr;
  };
  CHECK(changed([](Problem& p) { p.op = Op::forward; }));
  CHECK(changed([](Problem& p) { p.addressing = AddressingMode::tokens; }));
  CHECK(changed([](Problem& p) { p.x_dtype = DType::f16; }));
  CHECK(changed([](Problem& p) { p.y_dtype = DType::f32; }));
  CHECK(changed([](Problem& p) { p.shape.a_dtype = DType::f32; }));
  CHECK(changed([](Problem& p) { p.shape.b_dtype = DType::f32; }));
  CHECK(changed([](Problem& p) { p.shape.in = 4097; }));
  CHECK(changed([](Problem& p) { p.shape.out[1] = 1025; }));
  CHECK(changed([](Problem& p) { p.shape.num_slices = 1; }));
  CHECK(changed([](Problem& p) { p.shape.max_rank = 8; }));
  CHECK(changed([](Problem& p) { p.dropout_p = 0.1f; }));
  CHECK_FALSE(changed([](Problem& p) { p.options.y_mode = YMode::overwrite; }));
}

TEST_CASE("what a call names, and batch_invariant, no file decides") {
  const auto table = parse(kHead + kLinear + " -> grouped: 2 tiles\n");
  REQUIRE(table.ok());
  Problem problem = linear(64, 8);
  CHECK(table->find(problem) != nullptr);
  problem.options.strategy = Strategy::grouped;
  CHECK(table->find(problem) == nullptr);
  problem.options = {};
  problem.options.configuration = 1;
  CHECK(table->find(problem) == nullptr);
  problem.options = {};
  problem.options.batch_invariant = BatchInvariant::on;
  CHECK(table->find(problem) == nullptr);
  CHECK(TuningTable().find(linear(64, 8)) == nullptr);
}

TEST_CASE("the text of a key is read back as the same key") {
  Problem experts = linear(300, 60);
  experts.op = Op::apply_experts;
  experts.addressing = AddressingMode::tokens;
  experts.expert_mode = ExpertMode::gather;
  experts.x_rows = XRows::token;
  experts.shape.num_experts = 128;
  Problem backward = linear(8192, 1);
  backward.op = Op::backward;
  backward.addressing = AddressingMode::uniform;
  backward.outputs = kOutputDx | kOutputDb | kRecomputesH;
  backward.dropout_p = 0.1f;
  Problem empty = linear(0, 0);
  const std::string entries[] = {
      key(linear(64, 8)) + " -> gemv: splits x2", key(experts) + " -> experts_sorted: many rows",
      key(backward) + " -> tensor_core: x", key(empty) + " -> grouped: default"};
  CHECK(entries[0] == kLinear + " -> gemv: splits x2");
  std::string text = kHead;
  for (const std::string& entry : entries) text += entry + "\n";
  const auto table = parse(text);
  REQUIRE_MESSAGE(table.ok(), table.status().message());
  CHECK(table->size() == 4);
  for (const Problem& problem : {linear(64, 8), experts, backward, empty}) {
    CAPTURE(key(problem));
    CHECK(table->find(problem) != nullptr);
  }
  CHECK(table->find(experts)->strategy == Strategy::experts_sorted);
  experts.expert_mode = ExpertMode::grouped;
  CHECK(table->find(experts) == nullptr);
  backward.outputs = kOutputDx;
  CHECK(table->find(backward) == nullptr);
  char cut[20];
  CHECK(write_tuning_key(linear(64, 8), cut, sizeof(cut)) == kLinear.size());
  CHECK(std::string(cut) == kLinear.substr(0, 19));
}

TEST_CASE("entries of other devices, kernels and backends are counted, not taken") {
  const std::string entry = kLinear + " -> gemv: splits x2\n";
  const std::string unknown = kLinear + " -> gemv: not of this version\n";
  for (const char* device : {"device gpu kernels=4 Fast Device, 8 units\n",
                             "device gpu kernels=3 Fast Device, 9 units\n",
                             "device other kernels=3 Fast Device, 8 units\n"}) {
    // Files may be put one behind the other.
    const auto table = parse("rankfold-tuning 1\n" + std::string(device) + unknown + kHead + entry);
    REQUIRE_MESSAGE(table.ok(), table.status().message());
    CHECK(table->size() == 1);
    CHECK(table->num_others() == 1);
    CHECK(table->find(linear(64, 8))->configuration == 2);
  }
  char line[256];
  (void)write_tuning_target(kTarget, line, sizeof(line));
  CHECK(kHead == std::string(kTuningHeader) + "\n" + line + "\n");
  // Without strategies names are not looked up.
  const auto counted = TuningTable::parse(kHead + unknown, kTarget, nullptr, 0);
  REQUIRE(counted.ok());
  CHECK(counted->size() == 1);
}

TEST_CASE("what is wrong with a file is said with its line") {
  const std::string start = "apply_linear addressing=grouped x=bf16 y=bf16 a=bf16 b=bf16 in=4096 ";
  const std::string end = " max_rank=16 rows=64 segments=8 -> gemv: default\n";
  struct Line {
    std::string text;
    const char* part;
  };
  const Line lines[] = {
      {"", "line 1: the file is empty"},
      {"# nothing\n", "line 1: the file is empty"},
      {"rankfold-tuning 2\n", "line 1: the format is '2'; this release of rankfold reads 1"},
      {"tuning\n", "line 1: it should be 'rankfold-tuning 1'"},
      {"rankfold-tuning 1\n" + kLinear + " -> gemv: default\n", "line 2: a line \"device ...\""},
      {"rankfold-tuning 1\ndevice gpu\n", "line 2: it should be \"device BACKEND kernels=NUMBER"},
      {"rankfold-tuning 1\ndevice gpu kernels=x Name\n", "line 2: it should be \"device BACKEND"},
      {kHead + kLinear + "\n", "line 3: it should be \"PROBLEM -> STRATEGY: CONFIGURATION\""},
      {kHead + kLinear + " -> gemv\n", "line 3: it should be \"PROBLEM ->"},
      {kHead + kLinear + " # -> gemv: default\n", "line 3: it should be \"PROBLEM ->"},
      {kHead + kLinear + " -> fast: default\n", "line 3: 'fast' is not a strategy"},
      {kHead + kLinear + " -> auto: default\n", "line 3: 'auto' is not a strategy"},
      {kHead + kLinear + " -> gemv: splits\n",
       "line 3: gemv of apply_linear has no configuration 'splits'"},
      {kHead + kLinear + " -> routed: default\n",
       "line 3: the gpu backend has no strategy routed for apply_linear"},
      {kHead + "apply_lin addressing=grouped -> gemv: default\n",
       "line 3: 'apply_lin' is not an operation"},
      {kHead + start + "out=4096" + " max_rank=16 rows=64 -> gemv: default\n",
       "line 3: segments= is missing"},
      {kHead + start + "out=" + end, "'out' is ''; it should be at most 16 widths"},
      {kHead + start + "out=1,,2" + end, "'out' is '1,,2'"},
      {kHead + start + "out=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17" + end, "at most 16 widths"},
      {kHead + start + "out=-5" + end, "'out' is '-5'"},
      {kHead + start + "out=99999999999999999999" + end, "'out' is"},
      {kHead + start + "out=4 in=3" + end, "line 3: 'in' stands there twice"},
      {kHead + start + "out=4 wide" + end, "'wide' is not a NAME=VALUE"},
      {kHead + start + "out=4 mode=gather" + end, "mode= is not for apply_linear"},
      {kHead + start + "out=4 outputs=dx" + end, "outputs= is not for apply_linear"},
      {kHead + start + "out=4 dropout=2" + end, "'dropout' is '2'; it should be 0 or 1"},
      {kHead + kLinear + " -> gemv: default\n\n" +
           "apply_linear addressing=grouped x=bf16 y=bf16 a=bf16 b=bf16 in=4096 out=4096,1024 "
           "max_rank=16 rows=33 segments=5 -> grouped: default\n",
       "line 5: the same problem as in line 3"},
  };
  for (const Line& line : lines) {
    CAPTURE(line.text);
    const auto table = parse(line.text);
    REQUIRE_FALSE(table.ok());
    CAPTURE(std::string(table.status().message()));
    CHECK(table.status().code() == StatusCode::malformed_file);
    CHECK(std::string(table.status().message()).find(line.part) != std::string::npos);
  }
}

TEST_CASE("RANKFOLD_TUNING: unset, missing, malformed, good") {
  const auto load = [] { return TuningTable::from_environment(kTarget, kStrategies, 4); };
  const std::string path = (std::filesystem::temp_directory_path() /
                            ("rankfold_tuning_" + std::to_string(std::rand()) + ".txt"))
                               .string();
  const auto write = [&](const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
  };
  unsetenv(kTuningVariable);
  CHECK(load().value().size() == 0);
  setenv(kTuningVariable, "", 1);
  CHECK(load().value().size() == 0);
  setenv(kTuningVariable, "/does/not/exist", 1);
  const Status missing = load().status();
  CHECK(missing.code() == StatusCode::invalid_argument);
  CHECK(std::string(missing.message()).find("RANKFOLD_TUNING is '/does/not/exist': ") == 0);
  CHECK(std::string(missing.message()).find("unset it") != std::string::npos);
  setenv(kTuningVariable, path.c_str(), 1);
  write(kHead + "nonsense\n");
  const Status malformed = load().status();
  CHECK(malformed.code() == StatusCode::malformed_file);
  CHECK(std::string(malformed.message()).find("line 3: ") != std::string::npos);
  CHECK(std::string(malformed.message()).find(path) != std::string::npos);
  write(kHead + kLinear + " -> gemv: default\n");
  CHECK(load().value().size() == 1);
  unsetenv(kTuningVariable);
  std::filesystem::remove(path);
}

TEST_CASE("looking up many entries allocates nothing") {
  std::string text = kHead;
  for (int in = 1; in <= 500; ++in) {
    Problem problem = linear(64, 8);
    problem.shape.in = in;
    text += key(problem) + " -> gemv: default\n";
  }
  const auto table = parse(text);
  REQUIRE(table.ok());
  CHECK(table->size() == 500);
  int found = 0;
#ifdef RANKFOLD_COUNTS_ALLOCATIONS
  const testing::AllocationScope allocations;
#endif
  for (int in = 1; in <= 1000; ++in) {
    Problem problem = linear(64, 8);
    problem.shape.in = in;
    found += table->find(problem) != nullptr ? 1 : 0;
  }
#ifdef RANKFOLD_COUNTS_ALLOCATIONS
  const auto count = allocations.count();
  CHECK(count == 0);
#endif
  CHECK(found == 500);
}
