// The trained adapters: logits of PEFT, and every answer.
#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "support.hpp"
#include "tasks.hpp"

namespace golden {
namespace {

std::vector<std::string> task_adapters() {
  std::vector<std::string> names;
  for (const string_tasks::Task& task : string_tasks::all_tasks())
    if (*task.name != '\0' && task.name == std::string(task.folder)) names.push_back(task.name);
  return names;
}

TEST_CASE("golden tasks: logits of each adapter alone and of all in one batch") {
  const GoldenFile file(kTasks);
  const Matrix base = file.logits("base");
  std::vector<std::string> names = task_adapters();
  REQUIRE(names.size() == 4);
  for (const rankfold::StreamMode mode : stream_modes()) {
    CAPTURE(to_string(mode));
    Rig rig(kTasks, names, mode);
    for (const std::string& name : names) {
      CAPTURE(name);
      const Matrix alone = rig.logits(file.sequences(), {name}).at(0);
      CHECK(adapter_error(alone, file.logits(name), base) <= 1);
    }
    const std::vector<Matrix> together = rig.logits(file.sequences(), names);
    for (std::size_t i = 0; i < names.size(); ++i) {
      CAPTURE(names[i]);
      CHECK(adapter_error(together[i], file.logits(names[i]), base) <= 1);
    }
  }
}

TEST_CASE("golden tasks: every answer is the one that PEFT gave, and the task's own") {
  std::ifstream stream(kTasks / "expected.json");
  const nlohmann::json expected = nlohmann::json::parse(stream);
  const std::vector<std::string> prompts = expected["prompts"];
  REQUIRE(prompts.size() == string_tasks::inputs().size());

  const auto model = llama::Model::load(kTasks / "base");
  const llama::Targets targets(model.config(), model.weights());
  std::vector<serving::AdapterSource> sources;
  for (const std::string& name : task_adapters())
    sources.push_back({name, kTasks / "adapters" / name});

  std::vector<serving::Request> requests;
  std::vector<std::string> answers_of_peft;
  for (const string_tasks::Task& task : string_tasks::all_tasks()) {
    if (task.name != std::string(task.folder)) continue;  // the guest is one of the others again
    const auto& outputs =
        *task.name == '\0' ? expected["base_outputs"] : expected["adapters"][task.name]["outputs"];
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      CHECK(prompts[i] == string_tasks::prompt_of(string_tasks::inputs()[i]));
      requests.push_back({.adapter = task.name, .prompt = prompts[i]});
      answers_of_peft.push_back(outputs[i]);
    }
  }

  for (const rankfold::StreamMode mode : stream_modes()) {
    CAPTURE(to_string(mode));
    serving::AdapterStore store(rankfold::backend(), targets.specs(), sources, 4);
    llama::Deltas deltas(rankfold::backend(), store.tables(), 64, mode);
    serving::Scheduler scheduler(model, deltas, &store, {.max_rows = 64, .max_running = 30});
    const std::vector<serving::Answer> answers = scheduler.run(requests);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      CAPTURE(requests[i].adapter);
      CAPTURE(requests[i].prompt);
      CHECK(answers[i].text == answers_of_peft[i]);
      CHECK(answers[i].text == string_tasks::right_answer(
                                   string_tasks::task_of(requests[i].adapter), requests[i].prompt));
    }
    CHECK(scheduler.totals().largest_mix == 5);
  }
}

}  // namespace
}  // namespace golden
