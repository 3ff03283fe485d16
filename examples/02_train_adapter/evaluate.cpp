#include "evaluate.hpp"

#include <cstdio>

#include "serving/scheduler.hpp"
#include "tasks.hpp"
#include "train/shift_task.hpp"

namespace train_adapter {
namespace {

constexpr const char* kNew = "shift";

// After so many prompts of the new adapter, one of another.
constexpr std::size_t kBetween = 5;

}  // namespace

Evaluation evaluate(rankfold::LoraBackend& backend, const llama::Model& model,
                    const llama::Targets& targets, const std::filesystem::path& data,
                    const std::filesystem::path& folder, const std::vector<std::string>& inputs) {
  std::vector<serving::AdapterSource> sources;
  std::vector<const string_tasks::Task*> others;
  for (const string_tasks::Task& task : string_tasks::all_tasks()) {
    if (std::string(task.name) != task.folder || *task.name == '\0') continue;
    sources.push_back({task.name, data / "adapters" / task.folder});
    others.push_back(&task);
  }
  if (!folder.empty()) sources.push_back({kNew, folder});

  std::vector<serving::Request> requests;
  std::vector<std::string> right;
  for (const std::string& input : inputs) {
    requests.push_back(
        {.adapter = folder.empty() ? "" : kNew, .prompt = string_tasks::prompt_of(input)});
    right.push_back(train::shifted(input));
    if (requests.size() % kBetween != 0) continue;
    const string_tasks::Task& task = *others[requests.size() / kBetween % others.size()];
    requests.push_back({.adapter = task.name, .prompt = string_tasks::prompt_of(input)});
    right.push_back(task.solve(input));
  }

  const serving::SchedulerOptions limits;
  serving::AdapterStore store(backend, targets.specs(), sources,
                              static_cast<std::int32_t>(sources.size()));
  llama::Deltas deltas(backend, store.tables(), limits.max_rows);
  serving::Scheduler scheduler(model, deltas, &store, limits);
  const std::vector<serving::Answer> answers = scheduler.run(requests);

  Evaluation evaluation;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const bool is_right = answers[i].text == right[i];
    if (requests[i].adapter != kNew && !requests[i].adapter.empty()) {
      evaluation.others.add(is_right);
      continue;
    }
    evaluation.all.add(is_right);
    evaluation.by_length[static_cast<std::int64_t>(right[i].size())].add(is_right);
  }
  return evaluation;
}

void print_table(const Evaluation& before, const Evaluation& after) {
  const auto line = [](const char* name, const Score& was, const Score& is) {
    std::printf("  %-7s  %7lld  %6.1f %%  %6.1f %%\n", name, static_cast<long long>(is.prompts),
                was.percent(), is.percent());
  };
  std::printf("  letters  prompts    before     after\n");
  for (const auto& [length, score] : after.by_length)
    line(std::to_string(length).c_str(), before.by_length.at(length), score);
  line("all", before.all, after.all);
}

}  // namespace train_adapter
