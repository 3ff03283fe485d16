// Every configuration of every strategy computes the right thing; and the file that RANKFOLD_TUNING
// names, as a process meets it.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "configuration_names.hpp"
#include "conformance/check_call.hpp"
#include "conformance/device_call.hpp"
#include "device.hpp"
#include "rankfold/cuda.hpp"
#include "rankfold/tuning.hpp"

using namespace rankfold;
using namespace rankfold::cuda_test;
using conformance::AddressingForm;
using conformance::CallSpec;
using conformance::SlotPattern;

namespace {

std::vector<StrategyInfo> strategies() {
  std::vector<StrategyInfo> lines(static_cast<std::size_t>(device().list_strategies(nullptr, 0)));
  device().list_strategies(lines.data(), static_cast<int>(lines.size()));
  return lines;
}

CallSpec linear(Op op, std::int64_t tokens, AddressingForm form, std::int32_t rank) {
  CallSpec spec;
  spec.op = op;
  spec.fill = testing::Fill::random;
  spec.tokens = tokens;
  spec.form = form;
  spec.in = 1024;
  spec.out = {2304, 320, 320};
  spec.num_slots = 3;
  spec.ranks = {rank, rank / 2, rank, rank, rank, 3, rank, rank, rank};
  spec.max_rank = rank;
  if (testing::has_ids(op)) {
    spec.out = {2304};
    spec.ranks = {rank, 3, rank};
  }
  return spec;
}

// Sizes at which each configuration is possible somewhere; the last ones are aligned to nothing.
std::vector<CallSpec> specs_of(Op op) {
  if (op == Op::apply_experts) {
    std::vector<CallSpec> specs;
    for (const ExpertMode mode : {ExpertMode::grouped, ExpertMode::gather}) {
      for (const std::int64_t tokens : {3, 100}) {
        for (const int slices : {1, 2}) {
          CallSpec spec = linear(op, tokens, AddressingForm::tokens, 16);
          spec.in = 320;
          spec.out = {512};
          if (slices == 2) spec.out.push_back(256);
          spec.num_experts = 5;
          spec.mode = mode;
          spec.x_rows = XRows::token;
          spec.row_weights = true;
          specs.push_back(spec);
        }
      }
    }
    return specs;
  }
  if (op == Op::backward) {
    std::vector<CallSpec> specs;
    for (const AddressingForm form :
         {AddressingForm::uniform, AddressingForm::grouped_by_backend}) {
      CallSpec spec = linear(op, 600, form, 16);
      spec.in = 2048;
      spec.out = {8192};
      spec.ranks = {16, 16, 3};
      spec.outputs = kOutputDx | kOutputDa | kOutputDb | kOutputDs;
      spec.gives_h = true;
      specs.push_back(spec);
    }
    return specs;
  }
  std::vector<CallSpec> specs = {linear(op, 5, AddressingForm::uniform, 16),
                                 linear(op, 40, AddressingForm::tokens, 16),
                                 linear(op, 40, AddressingForm::grouped_by_backend, 64)};
  CallSpec odd = linear(op, 33, AddressingForm::tokens, 13);
  odd.in = 1017;
  odd.out[0] = 2303;
  specs.push_back(odd);
  if (op != Op::apply_linear && op != Op::forward) return specs;
  for (const std::int32_t rank : {16, 32, 64}) {
    CallSpec many = linear(op, 150, AddressingForm::grouped_by_backend, rank);
    if (rank == 32) {
      many.tokens = 300;
      many.out.resize(2);
    }
    specs.push_back(many);
  }
  // Over 1024 rows a block of the shrink has 128 of them; where y has many columns one of the
  // expand, too, and of high ranks also for fewer rows.
  CallSpec more = linear(op, 1100, AddressingForm::grouped_by_backend, 64);
  specs.push_back(more);
  more.out[0] = 7168;
  specs.push_back(more);
  CallSpec wide = linear(op, 129, AddressingForm::grouped_by_backend, 80);
  wide.out = {30080};
  wide.ranks = {80, 3, 80};
  specs.push_back(wide);
  odd.tokens = 140;
  odd.form = AddressingForm::grouped_by_backend;
  odd.y = DType::f32;
  specs.push_back(odd);
  return specs;
}

void check_operation(Op op) {
  const OwnedStream stream = make_stream();
  std::map<std::tuple<Strategy, int>, int> ran;
  std::map<Strategy, bool> possible;
  for (const CallSpec& spec : specs_of(op)) {
    const conformance::FilledCall filled = conformance::build(spec, 1);
    conformance::DeviceCall call(device(), filled.call);
    throw_if_error(call.prepare(stream, conformance::forced_strategies()));
    Problem problem = call.problem();
    for (const StrategyInfo& line : strategies()) {
      if (line.op != op) continue;
      const auto names = split_names(line.configurations);
      for (int configuration = 1; configuration <= static_cast<int>(names.size());
           ++configuration) {
        problem.options.strategy = line.strategy;
        problem.options.configuration = configuration;
        if (!supports(device(), problem).ok()) continue;
        throw_if_error(call.reset(stream));
        const Status status = call.run(stream, problem.options);
        conformance::CallOutcome outcome = call.collect(stream);
        if (!status.ok()) outcome.status = status;
        possible[line.strategy] = true;
        const conformance::Outcome judged = conformance::judge_outcome(
            filled, outcome,
            std::string(to_string(op)) + ", " + std::to_string(spec.tokens) + " rows, max_rank " +
                std::to_string(spec.max_rank) + ", " + to_string(line.strategy) + ": " +
                names[static_cast<std::size_t>(configuration) - 1] + ": ");
        if (!judged.passed()) FAIL_CHECK(judged.message);
        ++ran[{line.strategy, configuration}];
      }
    }
  }
  for (const StrategyInfo& line : strategies()) {
    if (line.op != op || !possible[line.strategy]) continue;  // of another device
    const auto names = split_names(line.configurations);
    for (std::size_t i = 0; i < names.size(); ++i) {
      CAPTURE(std::string(to_string(line.strategy)));
      CAPTURE(names[i]);
      CHECK(ran[{line.strategy, static_cast<int>(i) + 1}] > 0);
    }
  }
  MESSAGE(std::string(to_string(op)), ": ", ran.size(), " configurations ran");
}

// A tuning file, named by the variable as long as this stands.
class TuningFile {
 public:
  explicit TuningFile(const std::string& text)
      : path_((std::filesystem::temp_directory_path() / "rankfold_device_test.tuning").string()) {
    std::ofstream(path_, std::ios::binary) << text;
    setenv(kTuningVariable, path_.c_str(), 1);
  }
  TuningFile(const TuningFile&) = delete;
  TuningFile& operator=(const TuningFile&) = delete;
  ~TuningFile() {
    unsetenv(kTuningVariable);
    std::filesystem::remove(path_);
  }

 private:
  std::string path_;
};

std::string target_line(const char* device_name) {
  BackendDescription description;
  cuda::descriptor().describe(&description);
  char line[512];
  (void)write_tuning_target(
      {"cuda", device_name != nullptr ? device_name : description.devices[0].name,
       description.kernels, 0},
      line, sizeof(line));
  return std::string(kTuningHeader) + "\n" + line + "\n";
}

Status create(std::unique_ptr<LoraBackend>* made) {
  LoraBackend* backend = nullptr;
  const Status status = cuda::descriptor().create(0, &backend);
  made->reset(backend);
  return status;
}

}  // namespace

TEST_CASE("configurations of apply_linear") { check_operation(Op::apply_linear); }
TEST_CASE("configurations of forward") { check_operation(Op::forward); }
TEST_CASE("configurations of shrink") { check_operation(Op::shrink); }
TEST_CASE("configurations of expand") { check_operation(Op::expand); }
TEST_CASE("configurations of embeddings") {
  check_operation(Op::apply_embedding);
  check_operation(Op::forward_embedding);
}
TEST_CASE("configurations of backward") { check_operation(Op::backward); }
TEST_CASE("configurations of apply_experts") { check_operation(Op::apply_experts); }

TEST_CASE("RANKFOLD_TUNING: entries for this device are taken, and the result is right") {
  const OwnedStream stream = make_stream();
  const CallSpec spec = linear(Op::apply_linear, 40, AddressingForm::grouped_by_backend, 16);
  const conformance::FilledCall filled = conformance::build(spec, 1);
  const Problem problem = conformance::DeviceCall(device(), filled.call).problem();
  char key[1024];
  (void)write_tuning_key(problem, key, sizeof(key));
  const std::string entry = std::string(key) + " -> grouped: splits x1/2, 2 tiles\n";
  CHECK(choose(device(), problem).value().from_tuning == 0);
  {
    const TuningFile file(target_line(nullptr) + entry);
    std::unique_ptr<LoraBackend> tuned;
    REQUIRE(create(&tuned).ok());
    const Choice choice = choose(*tuned, problem).value();
    CHECK(choice.from_tuning == 1);
    CHECK(choice.strategy == Strategy::grouped);
    CHECK(choice.configuration > 1);
    const conformance::CallOutcome outcome = conformance::run_call(*tuned, filled.call, stream);
    const conformance::Outcome judged = conformance::judge_outcome(filled, outcome, "tuned: ");
    CHECK_MESSAGE(judged.passed(), judged.message);
  }
  const TuningFile other(target_line("Another Device") + entry);
  std::unique_ptr<LoraBackend> untuned;
  REQUIRE(create(&untuned).ok());
  CHECK(choose(*untuned, problem).value().from_tuning == 0);
}

TEST_CASE("RANKFOLD_TUNING: a file that cannot be meant is refused when the backend is made") {
  std::unique_ptr<LoraBackend> made;
  const auto refused = [&](const Status& status, StatusCode code, const char* part) {
    CAPTURE(std::string(status.message()));
    CHECK(status.code() == code);
    CHECK(std::string(status.message()).find("RANKFOLD_TUNING") == 0);
    CHECK(std::string(status.message()).find(part) != std::string::npos);
    CHECK(made == nullptr);
  };
  {
    const TuningFile file(target_line(nullptr) + "shrink\n");
    refused(create(&made), StatusCode::malformed_file, "line 3: ");
  }
  setenv(kTuningVariable, "/does/not/exist", 1);
  refused(create(&made), StatusCode::invalid_argument, "/does/not/exist");
  unsetenv(kTuningVariable);
}
