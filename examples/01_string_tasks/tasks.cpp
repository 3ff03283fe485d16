#include "tasks.hpp"

#include <algorithm>
#include <stdexcept>

namespace string_tasks {
namespace {

// Inputs are letters a to z; characters are not left to the locale.
std::string copy(const std::string& input) { return input; }

std::string reverse(const std::string& input) { return {input.rbegin(), input.rend()}; }

std::string upper(const std::string& input) {
  std::string out = input;
  for (char& c : out) c = static_cast<char>(c - 'a' + 'A');
  return out;
}

std::string sort(const std::string& input) {
  std::string out = input;
  std::sort(out.begin(), out.end());
  return out;
}

std::string rot13(const std::string& input) {
  std::string out = input;
  for (char& c : out) c = static_cast<char>('a' + (c - 'a' + 13) % 26);
  return out;
}

constexpr Task kTasks[] = {
    {"", "", copy},         {"reverse", "reverse", reverse}, {"upper", "upper", upper},
    {"sort", "sort", sort}, {"rot13", "rot13", rot13},       {"guest", "rot13", rot13},
};

constexpr const char* kInputs[] = {"hello", "rankfold", "zebra", "abc", "shrinkgrow", "qwertyuiop"};

}  // namespace

std::span<const Task> all_tasks() { return kTasks; }

const Task& task_of(const std::string& adapter) {
  for (const Task& task : kTasks)
    if (adapter == task.name) return task;
  throw std::invalid_argument("no task of the name " + adapter);
}

std::string prompt_of(const std::string& input) { return "?" + input + ">"; }

std::string right_answer(const Task& task, const std::string& prompt) {
  return task.solve(prompt.substr(1, prompt.size() - 2));
}

std::span<const char* const> inputs() { return kInputs; }

std::vector<serving::Request> demo_requests() {
  // Each task answers every input once.
  // clang-format off
  constexpr const char* kOrder[] = {
      "upper", "reverse", "sort", "rot13", "upper", "upper", "", "upper", "upper", "upper",
      "reverse", "sort", "rot13", "", "reverse", "sort", "rot13", "",
      "guest", "reverse", "sort", "rot13", "guest", "", "guest", "reverse", "guest", "sort",
      "rot13", "guest", "", "guest", "reverse", "sort", "rot13", ""};
  // clang-format on
  std::vector<serving::Request> requests;
  for (const char* adapter : kOrder) {
    const auto before = std::count_if(requests.begin(), requests.end(),
                                      [&](const auto& r) { return r.adapter == adapter; });
    requests.push_back({.adapter = adapter,
                        .prompt = prompt_of(kInputs[before]),
                        .arrival_step = static_cast<std::int64_t>(requests.size())});
  }
  return requests;
}

}  // namespace string_tasks
