// Several LoRA adapters and the bare base in one batch of a small Llama. README.md tells the story;
// llama/ is the model, serving/ the batching, this folder the demonstration.
#include <cstdio>
#include <exception>
#include <memory>

#include "llama/targets.hpp"
#include "options.hpp"
#include "report.hpp"
#include "tasks.hpp"

namespace {

using namespace string_tasks;

rankfold::LoraBackend& choose_backend(const Options& options) {
  if (!options.backend.empty())
    rankfold::throw_if_error(rankfold::registry().choose(options.backend.c_str()));
  return rankfold::backend();
}

std::vector<serving::AdapterSource> choose_adapters(const Options& options) {
  // The built-in adapters were trained on the built-in model: another one gets the user's alone.
  if (!options.adapters.empty() || options.model) return options.adapters;
  std::vector<serving::AdapterSource> sources;
  for (const Task& task : all_tasks()) {
    const std::string name = task.name;
    const bool is_guest = name != task.folder;  // plays in the demonstration only
    if (name.empty() || (is_guest && !options.is_demo())) continue;
    sources.push_back({name, options.data / "adapters" / task.folder});
  }
  return sources;
}

std::vector<serving::Request> choose_requests(const Options& options,
                                              const std::vector<serving::AdapterSource>& adapters) {
  std::vector<serving::Request> requests;
  if (options.is_demo()) {
    requests = demo_requests();
  } else {
    std::vector<std::string> prompts = options.prompts;
    if (prompts.empty())
      for (const char* input : inputs()) prompts.push_back(prompt_of(input));
    for (const std::string& prompt : prompts) {
      requests.push_back({.prompt = prompt});
      for (const serving::AdapterSource& adapter : adapters)
        requests.push_back({.adapter = adapter.name, .prompt = prompt});
    }
  }
  for (serving::Request& request : requests) request.max_new_tokens = options.new_tokens;
  return requests;
}

int run(const Options& options) {
  const auto model = llama::Model::load(options.model.value_or(options.data / "base"));
  const llama::Targets targets(model.config(), model.weights());
  const std::vector<serving::AdapterSource> adapters = choose_adapters(options);
  const std::vector<serving::Request> requests = choose_requests(options, adapters);
  const serving::SchedulerOptions limits;

  rankfold::LoraBackend& backend = choose_backend(options);
  std::unique_ptr<serving::AdapterStore> store;
  if (!adapters.empty())
    store = std::make_unique<serving::AdapterStore>(backend, targets.specs(), adapters,
                                                    options.num_slots);
  llama::Deltas deltas =
      store != nullptr ? llama::Deltas(backend, store->tables(), limits.max_rows) : llama::Deltas();

  serving::Scheduler scheduler(model, deltas, store.get(), limits);
  const std::vector<serving::Answer> answers =
      scheduler.run(requests, [&](const serving::StepReport& step) {
        print_arrivals(step);
        if (options.steps) print_rows(step);
      });

  std::printf("\n");
  const int num_wrong = print_table(requests, answers, options.is_demo());
  std::printf("\n");
  if (options.is_demo())
    std::printf("answers           %zu right, %d wrong\n", answers.size() - num_wrong, num_wrong);
  print_summary(scheduler.totals(), deltas, backend.name(), store.get());
  return num_wrong == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  int exit_code = 0;
  try {
    const std::optional<Options> options = parse_options(argc, argv, exit_code);
    return options ? run(*options) : exit_code;
  } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "string_tasks: %s\n", printable(error.what()).c_str());
    return 2;
  }
}
