// What the demonstration prints.
#pragma once

#include <string>
#include <vector>

#include "llama/deltas.hpp"
#include "serving/scheduler.hpp"

namespace string_tasks {

/// Bytes that are no printable ASCII, as \xNN: they would spoil the table, or the terminal.
std::string printable(const std::string& text);

/// Which adapters came into which slots before the step, and who went.
void print_arrivals(const serving::StepReport& step);
/// Rows of the step by adapter.
void print_rows(const serving::StepReport& step);

/// prompt, adapter, answer; with `verdict` also right or wrong. Returns the number of wrong
/// answers.
int print_table(const std::vector<serving::Request>& requests,
                const std::vector<serving::Answer>& answers, bool verdict);

/// Backend, tokens per second, share of the deltas.
void print_summary(const serving::Totals& totals, const llama::Deltas& deltas,
                   const std::string& backend, const serving::AdapterStore* store);

}  // namespace string_tasks
