// The new adapter at work: served beside the others, answer by answer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "llama/model.hpp"
#include "llama/targets.hpp"
#include "serving/adapter_store.hpp"

namespace train_adapter {

/// Right answers of a number of prompts.
struct Score {
  std::int64_t right = 0;
  std::int64_t prompts = 0;

  void add(bool is_right) {
    right += is_right ? 1 : 0;
    ++prompts;
  }
  double percent() const {
    return prompts == 0 ? 0.0 : 100.0 * static_cast<double>(right) / static_cast<double>(prompts);
  }
};

struct Evaluation {
  std::map<std::int64_t, Score> by_length;
  Score all;
  Score others;  ///< what the other adapters, in the same batches, answered to their own tasks
};

/// Asks for the shift of every input. `folder`: of the adapter that is to do it; empty: the bare
/// base, which stands for the adapter before training, since that changes nothing yet.
Evaluation evaluate(rankfold::LoraBackend& backend, const llama::Model& model,
                    const llama::Targets& targets, const std::filesystem::path& data,
                    const std::filesystem::path& folder, const std::vector<std::string>& inputs);

/// One line a length.
void print_table(const Evaluation& before, const Evaluation& after);

}  // namespace train_adapter
