#include "serving/scheduler.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>

namespace serving {

using llama::Logits;

Scheduler::Scheduler(const llama::Model& model, llama::Deltas& deltas, AdapterStore* store,
                     const SchedulerOptions& options)
    : model_(model), deltas_(deltas), store_(store), options_(options) {
  if (options.max_running < 1 || options.max_rows < options.max_running)
    throw std::invalid_argument("max_running must be 1 to max_rows: each request takes a row");
}

std::vector<Answer> Scheduler::run(const std::vector<Request>& requests,
                                   const std::function<void(const StepReport&)>& watch) {
  std::vector<std::size_t> order(requests.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    check(requests[i]);
    order[i] = i;
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return requests[a].arrival_step < requests[b].arrival_step;
  });

  const auto begin = std::chrono::steady_clock::now();
  std::vector<Answer> answers(requests.size());
  auto next = order.begin();
  for (std::int64_t step = 0; next != order.end() || !waiting_.empty() || !running_.empty();
       ++step) {
    for (; next != order.end() && requests[*next].arrival_step <= step; ++next)
      waiting_.push_back(*next);
    admit(requests, step, answers);
    if (running_.empty()) continue;  // nobody is here yet

    const Step work = make_step();
    const llama::Matrix logits = model_.forward(work.batch, deltas_);
    if (store_ != nullptr) store_->unpin_all();
    report(work, step, watch);

    // A row of logits for each member whose tokens are all in its cache by now.
    Eigen::Index row = 0;
    for (Running* running : work.members) {
      if (running->num_pending() > 0) continue;  // more of its prompt is to come
      Eigen::Index token = 0;
      logits.row(row++).maxCoeff(&token);  // greedy
      running->tokens.push_back(static_cast<std::int32_t>(token));
      ++totals_.new_tokens;
    }
    for (const Running& running : running_) {
      if (!finished(running)) continue;
      answers[running.index].text = answer_text(running);
      answers[running.index].last_step = step;
    }
    running_.remove_if([&](const Running& running) { return finished(running); });
  }
  totals_.seconds +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return answers;
}

void Scheduler::check(const Request& request) const {
  const llama::Config& config = model_.config();
  constexpr std::size_t kShown = 60;
  const bool is_long = request.prompt.size() > kShown;
  const std::string what =
      "prompt \"" + request.prompt.substr(0, kShown) + (is_long ? "...\": " : "\": ");
  if (request.prompt.empty()) throw llama::ModelError(what + "it is empty");
  for (const char c : request.prompt) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= config.vocab_size)
      throw llama::ModelError(what + "byte " + std::to_string(byte) +
                              " is not in the model's vocabulary of " +
                              std::to_string(config.vocab_size) + " tokens");
  }
  const auto length = static_cast<std::int64_t>(request.prompt.size()) + request.max_new_tokens;
  if (request.max_new_tokens < 1 || length > config.max_positions)
    throw llama::ModelError(what + "with " + std::to_string(request.max_new_tokens) +
                            " new tokens it needs " + std::to_string(length) +
                            " positions; the model has " + std::to_string(config.max_positions) +
                            " and answers with at least 1 token");
  if (!request.adapter.empty() && store_ == nullptr)
    throw std::invalid_argument("a request names adapter " + request.adapter +
                                ", and there is no store");
}

// true: the request can run in this step. The bare base always can.
bool Scheduler::pin(const Request& request, std::int32_t& slot, AdapterStore::Upload upload) {
  slot = -1;
  if (request.adapter.empty()) return true;
  const std::optional<std::int32_t> pinned = store_->pin(request.adapter, deltas_.stream(), upload);
  if (pinned) slot = *pinned;
  return pinned.has_value();
}

// Running requests pin their adapters first: whatever a newcomer evicts, it is nobody's of theirs.
// A newcomer whose adapter has to wait (for its upload or for a slot) lets others pass, so that the
// step is full; an engine with endless traffic would bound how often.
void Scheduler::admit(const std::vector<Request>& requests, std::int64_t step,
                      std::vector<Answer>& answers) {
  for (Running& running : running_)
    if (!pin(*running.request, running.slot, AdapterStore::Upload::wait))
      throw std::logic_error("the adapter of a running request has gone");

  for (auto next = waiting_.begin(); next != waiting_.end();) {
    if (static_cast<std::int64_t>(running_.size()) == options_.max_running) return;
    const Request& request = requests[*next];
    const auto upload = running_.empty() ? AdapterStore::Upload::wait : AdapterStore::Upload::go_on;
    std::int32_t slot = -1;
    if (!pin(request, slot, upload)) {
      ++next;
      continue;
    }
    const auto length = static_cast<std::int64_t>(request.prompt.size()) + request.max_new_tokens;
    Running running{*next, &request, llama::KvCache(model_.config(), length), {}, slot};
    for (const char c : request.prompt) running.tokens.push_back(static_cast<unsigned char>(c));
    running_.push_back(std::move(running));
    answers[*next].first_step = step;
    next = waiting_.erase(next);
  }
  if (running_.empty() && !waiting_.empty())
    throw std::runtime_error("adapter " + requests[waiting_.front()].adapter +
                             " finds no room in an idle pool");
}

// Requests that wait for one token come first, so that nobody's long prompt holds them up; prompts
// share the rows that are left and may take several steps.
Scheduler::Step Scheduler::make_step() {
  Step step;
  const auto add = [&](Running& running, std::int64_t num_rows) {
    const bool whole = num_rows == running.num_pending();
    step.batch.add(running.cache, std::span(running.tokens).subspan(running.cache.size(), num_rows),
                   running.slot, whole ? Logits::last : Logits::none);
    step.members.push_back(&running);
  };
  for (Running& running : running_)
    if (running.num_pending() == 1) add(running, 1);
  for (Running& running : running_) {
    const std::int64_t room = options_.max_rows - step.batch.num_rows();
    if (running.num_pending() > 1 && room > 0) add(running, std::min(running.num_pending(), room));
  }
  return step;
}

void Scheduler::report(const Step& work, std::int64_t step,
                       const std::function<void(const StepReport&)>& watch) {
  StepReport report{step, {}, {}};
  for (std::size_t i = 0; i < work.members.size(); ++i) {
    const Running& running = *work.members[i];
    const std::int64_t num_rows = work.batch.sequences[i].num_rows;
    report.rows[running.request->adapter] += num_rows;
    if (running.num_new() == 0) totals_.prompt_tokens += num_rows;
  }
  if (store_ != nullptr) report.arrivals = store_->take_arrivals();
  totals_.largest_mix =
      std::max(totals_.largest_mix, static_cast<std::int64_t>(report.rows.size()));
  ++totals_.num_steps;
  if (watch) watch(report);
}

bool Scheduler::finished(const Running& running) const {
  if (running.num_new() == 0) return false;
  const std::vector<std::int32_t>& stops = model_.config().stop_tokens;
  return running.num_new() >= running.request->max_new_tokens ||
         std::find(stops.begin(), stops.end(), running.tokens.back()) != stops.end();
}

std::string Scheduler::answer_text(const Running& running) const {
  const std::vector<std::int32_t>& stops = model_.config().stop_tokens;
  std::string text;
  for (std::size_t i = running.request->prompt.size(); i < running.tokens.size(); ++i) {
    const std::int32_t token = running.tokens[i];
    if (std::find(stops.begin(), stops.end(), token) != stops.end()) break;
    if (token < 256)
      text.push_back(static_cast<char>(token));
    else
      text += "<" + std::to_string(token) + ">";  // no byte: a vocabulary beyond this example
  }
  return text;
}

}  // namespace serving
