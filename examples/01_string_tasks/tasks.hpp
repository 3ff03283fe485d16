// The string tasks: what they are, what is right, and the traffic of the demonstration.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "serving/scheduler.hpp"

namespace string_tasks {

/// One task: the adapter trained for it, and its definition.
struct Task {
  const char* name;    ///< as requests name the adapter; "" is the bare base, which copies
  const char* folder;  ///< below data/adapters
  std::string (*solve)(const std::string& input);
};

/// copy (the bare base), reverse, upper, sort, rot13, and guest: a second customer with the weights
/// of rot13, which are an adapter of their own all the same.
std::span<const Task> all_tasks();
/// The task of an adapter's name. Throws std::invalid_argument.
const Task& task_of(const std::string& adapter);

/// "?input>": the same prompt for every task, so only the adapter can tell what to answer.
std::string prompt_of(const std::string& input);
/// The right answer to a prompt, from the task's definition.
std::string right_answer(const Task& task, const std::string& prompt);

/// Inputs of different lengths.
std::span<const char* const> inputs();

/// A request a step. In the first half base, reverse, upper, sort and rot13 share the batch;
/// halfway upper's requests end and guest's begin, while the others go on.
std::vector<serving::Request> demo_requests();

}  // namespace string_tasks
