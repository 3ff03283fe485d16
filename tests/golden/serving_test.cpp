// The batching: whatever the limits, the same answers.
#include <doctest/doctest.h>

#include <algorithm>

#include "support.hpp"
#include "tasks.hpp"

namespace golden {
namespace {

// The demonstration's traffic under some limits; everything that was seen.
struct Run {
  std::vector<serving::Request> requests = string_tasks::demo_requests();
  std::vector<serving::Answer> answers;
  std::vector<serving::StepReport> steps;
  serving::Totals totals;
  rankfold::PoolStats pool;

  Run(std::int32_t num_slots, const serving::SchedulerOptions& limits,
      rankfold::StreamMode mode = stream_modes().front()) {
    const auto model = llama::Model::load(kTasks / "base");
    const llama::Targets targets(model.config(), model.weights());
    std::vector<serving::AdapterSource> sources;
    for (const string_tasks::Task& task : string_tasks::all_tasks())
      if (*task.name != '\0') sources.push_back({task.name, kTasks / "adapters" / task.folder});
    serving::AdapterStore store(rankfold::backend(), targets.specs(), sources, num_slots);
    llama::Deltas deltas(rankfold::backend(), store.tables(), limits.max_rows, mode);
    serving::Scheduler scheduler(model, deltas, &store, limits);
    answers = scheduler.run(requests, [&](const auto& step) { steps.push_back(step); });
    totals = scheduler.totals();
    pool = store.stats();
  }

  int num_wrong() const {
    int wrong = 0;
    for (std::size_t i = 0; i < requests.size(); ++i)
      wrong +=
          answers[i].text != string_tasks::right_answer(string_tasks::task_of(requests[i].adapter),
                                                        requests[i].prompt);
    return wrong;
  }
};

TEST_CASE("serving: one adapter takes another's place while the rest go on") {
  for (const rankfold::StreamMode mode : stream_modes()) {
    CAPTURE(to_string(mode));
    const Run run(4, {}, mode);
    CHECK(run.num_wrong() == 0);
    CHECK(run.totals.largest_mix == 5);
    const auto swap = std::find_if(run.steps.begin(), run.steps.end(), [](const auto& step) {
      return std::any_of(step.arrivals.begin(), step.arrivals.end(), [](const auto& arrival) {
        return arrival.adapter == "guest" && arrival.evicted == std::vector<std::string>{"upper"};
      });
    });
    REQUIRE(swap != run.steps.end());
    // Requests of others were there before that step and after it.
    const std::int64_t step = swap->step;
    const auto across = std::count_if(
        run.answers.begin(), run.answers.end(),
        [&](const auto& answer) { return answer.first_step < step && answer.last_step >= step; });
    CHECK(across >= 3);
    // And the first step with guest mixes it with others.
    CHECK(swap->rows.count("guest") == 1);
    CHECK(swap->rows.size() >= 4);
  }
}

TEST_CASE("serving: any number of slots gives the same answers") {
  for (const std::int32_t num_slots : {1, 2, 3, 5, 9}) {
    CAPTURE(num_slots);
    const Run run(num_slots, {});
    CHECK(run.num_wrong() == 0);
    CHECK((run.pool.num_evictions > 0) == (num_slots < 5));
    CHECK(run.pool.num_pinned == 0);
  }
}

TEST_CASE("serving: prompts in pieces, and one request at a time") {
  const Run pieces(5, {.max_rows = 5, .max_running = 4});
  CHECK(pieces.num_wrong() == 0);
  const auto most = [](const serving::StepReport& step) {
    std::int64_t rows = 0;
    for (const auto& [adapter, count] : step.rows) rows += count;
    return rows;
  };
  for (const serving::StepReport& step : pieces.steps) CHECK(most(step) <= 5);
  const Run alone(5, {.max_rows = 64, .max_running = 1});
  CHECK(alone.num_wrong() == 0);
  CHECK(alone.totals.largest_mix == 1);
  CHECK(alone.totals.prompt_tokens == pieces.totals.prompt_tokens);
  CHECK(alone.totals.new_tokens == pieces.totals.new_tokens);
}

TEST_CASE("serving: requests and limits that cannot work are refused by name") {
  const auto model = llama::Model::load(kTasks / "base");
  llama::Deltas none;
  serving::Scheduler scheduler(model, none, nullptr, {});
  const auto refusal = [&](const serving::Request& request) {
    try {
      (void)scheduler.run({request});
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(refusal({.prompt = "?abc>"}) == "");
  CHECK(refusal({.prompt = ""}).find("empty") != std::string::npos);
  CHECK(refusal({.prompt = "?\xc3\xa9>"}).find("byte 195") != std::string::npos);
  CHECK(refusal({.prompt = "?abc>", .max_new_tokens = 252}).find("256") != std::string::npos);
  CHECK(refusal({.prompt = "?abc>", .max_new_tokens = 0}) != "");
  CHECK(refusal({.adapter = "reverse", .prompt = "?abc>"}).find("reverse") != std::string::npos);
  CHECK_THROWS_AS(serving::Scheduler(model, none, nullptr, {.max_rows = 2, .max_running = 3}),
                  std::invalid_argument);
}

}  // namespace
}  // namespace golden
