#include "report.hpp"

#include <algorithm>
#include <cstdio>

#include "tasks.hpp"

namespace string_tasks {
namespace {

std::string shown(const std::string& adapter) {
  return adapter.empty() ? "(base)" : printable(adapter);
}

int width(std::size_t value) { return static_cast<int>(value); }

}  // namespace

std::string printable(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 32 && byte < 127) {
      out.push_back(c);
    } else {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\x%02x", byte);
      out += escape;
    }
  }
  return out;
}

void print_arrivals(const serving::StepReport& step) {
  for (const serving::Arrival& arrival : step.arrivals) {
    std::printf("step %3lld: %s comes into slot %d", static_cast<long long>(step.step),
                shown(arrival.adapter).c_str(), arrival.slot);
    for (const std::string& name : arrival.evicted) std::printf(", %s goes", shown(name).c_str());
    std::printf("\n");
  }
}

void print_rows(const serving::StepReport& step) {
  std::printf("step %3lld: rows", static_cast<long long>(step.step));
  for (const auto& [adapter, rows] : step.rows)
    std::printf("  %s %lld", shown(adapter).c_str(), static_cast<long long>(rows));
  std::printf("\n");
}

int print_table(const std::vector<serving::Request>& requests,
                const std::vector<serving::Answer>& answers, bool verdict) {
  std::size_t prompt_width = 6;
  std::size_t adapter_width = 7;
  std::size_t answer_width = 6;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    prompt_width = std::max(prompt_width, printable(requests[i].prompt).size());
    adapter_width = std::max(adapter_width, shown(requests[i].adapter).size());
    answer_width = std::max(answer_width, printable(answers[i].text).size());
  }
  const auto line = [&](const std::string& prompt, const std::string& adapter,
                        const std::string& steps, const std::string& answer,
                        const std::string& mark) {
    std::printf("  %-*s  %-*s  %-8s  %-*s%s%s\n", width(prompt_width), prompt.c_str(),
                width(adapter_width), adapter.c_str(), steps.c_str(),
                width(mark.empty() ? 0 : answer_width), answer.c_str(), mark.empty() ? "" : "  ",
                mark.c_str());
  };

  line("prompt", "adapter", "steps", "answer", verdict ? "right?" : "");
  int num_wrong = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    std::string mark;
    if (verdict) {
      const std::string right = right_answer(task_of(requests[i].adapter), requests[i].prompt);
      const bool is_right = answers[i].text == right;
      mark = is_right ? "right" : "WRONG, should be " + right;
      num_wrong += is_right ? 0 : 1;
    }
    const std::string steps =
        std::to_string(answers[i].first_step) + "-" + std::to_string(answers[i].last_step);
    line(printable(requests[i].prompt), shown(requests[i].adapter), steps,
         printable(answers[i].text), mark);
  }
  return num_wrong;
}

void print_summary(const serving::Totals& totals, const llama::Deltas& deltas,
                   const std::string& backend, const serving::AdapterStore* store) {
  std::printf("backend           %s\n", backend.c_str());
  std::printf("steps             %lld, at most %lld adapters (with the base) in one\n",
              static_cast<long long>(totals.num_steps), static_cast<long long>(totals.largest_mix));
  if (store != nullptr) {
    const rankfold::PoolStats stats = store->stats();
    std::printf("adapter pool      %llu loads, %llu evictions, %.0f of %.0f KiB in use\n",
                static_cast<unsigned long long>(stats.num_loads),
                static_cast<unsigned long long>(stats.num_evictions),
                static_cast<double>(stats.arena_in_use) / 1024,
                static_cast<double>(stats.arena_bytes) / 1024);
  }
  std::printf("tokens            %lld of prompts, %lld new\n",
              static_cast<long long>(totals.prompt_tokens),
              static_cast<long long>(totals.new_tokens));
  const auto tokens = static_cast<double>(totals.prompt_tokens + totals.new_tokens);
  std::printf("tokens per second %.0f (%.0f new)\n", tokens / totals.seconds,
              static_cast<double>(totals.new_tokens) / totals.seconds);
  std::printf("time of deltas    %.1f %% of %.3f s\n", 100 * deltas.seconds() / totals.seconds,
              totals.seconds);
}

}  // namespace string_tasks
