// The string tasks: what they are, what is right, and the traffic of the demonstration.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "serving/scheduler.hpp"

namespace string_tasks {

/// One task: the adapter trained for it, and its definition.
struct Task {
  const char* name;  ///< folder below data/adapters; "" is the bare base, which copies
  const char* what;
  std::string (*solve)(const std::string& input);
};

/// copy (the bare base), reverse, upper, sort, rot13.
std::span<const Task> all_tasks();
/// The task of an adapter's name. Throws std::invalid_argument.
const Task& task_of(const std::string& adapter);

/// "?input>": the same prompt for every task, so only the adapter can tell what to answer.
std::string prompt_of(const std::string& input);
/// The right answer to a prompt, from the task's definition.
std::string right_answer(const Task& task, const std::string& prompt);

/// Inputs of different lengths.
std::span<const char* const> inputs();

/// A request a step. In the first half upper is busy and rot13 unknown; halfway upper's requests
/// end and rot13's begin, while base, reverse and sort go on.
std::vector<serving::Request> demo_requests();

}  // namespace string_tasks
