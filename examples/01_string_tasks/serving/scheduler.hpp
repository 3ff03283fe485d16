// Continuous batching: requests enter and leave between steps, and a step mixes whatever is there:
// prompts and single tokens, adapters and the bare base.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "llama/model.hpp"
#include "serving/adapter_store.hpp"

namespace serving {

struct Request {
  std::string adapter = {};  ///< name in the store; empty: the bare base
  std::string prompt = {};   ///< its bytes are the token ids
  std::int64_t arrival_step = 0;
  std::int64_t max_new_tokens = 16;
};

struct Answer {
  std::string text;  ///< without the stop token
  std::int64_t first_step = -1;
  std::int64_t last_step = -1;
};

struct SchedulerOptions {
  std::int64_t max_rows = 64;     ///< tokens in one step; a long prompt takes several steps
  std::int64_t max_running = 12;  ///< requests that hold a KV cache at once
};

/// What a step did, for those who watch.
struct StepReport {
  std::int64_t step;
  std::map<std::string, std::int64_t> rows;  ///< by adapter; "" the base
  std::vector<Arrival> arrivals;
};

struct Totals {
  std::int64_t num_steps = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t new_tokens = 0;
  std::int64_t largest_mix = 0;  ///< most adapters, the base among them, in one step
  double seconds = 0;
};

class Scheduler {
 public:
  /// `store` may be null when no request names an adapter.
  Scheduler(const llama::Model& model, llama::Deltas& deltas, AdapterStore* store,
            const SchedulerOptions& options);

  /// Answers all requests, greedily; answers in the requests' order. Throws llama::ModelError for a
  /// prompt that the model cannot take (empty, bytes outside the vocabulary, too long).
  std::vector<Answer> run(const std::vector<Request>& requests,
                          const std::function<void(const StepReport&)>& watch = {});
  const Totals& totals() const { return totals_; }

 private:
  // A request that holds a KV cache. tokens: prompt and answer; those not in the cache come next.
  struct Running {
    std::size_t index;
    const Request* request;
    llama::KvCache cache;
    std::vector<std::int32_t> tokens;
    std::int32_t slot = -1;

    std::int64_t num_pending() const {
      return static_cast<std::int64_t>(tokens.size()) - cache.size();
    }
    std::int64_t num_new() const {
      return static_cast<std::int64_t>(tokens.size() - request->prompt.size());
    }
  };

  struct Step {
    llama::Batch batch;
    std::vector<Running*> members;  // whose sequences batch.sequences are, in that order
  };

  void check(const Request& request) const;
  bool pin(const Request& request, std::int32_t& slot, AdapterStore::Upload upload);
  void admit(const std::vector<Request>& requests, std::int64_t step, std::vector<Answer>& answers);
  Step make_step();
  void report(const Step& work, std::int64_t step,
              const std::function<void(const StepReport&)>& watch);
  bool finished(const Running& running) const;
  std::string answer_text(const Running& running) const;

  const llama::Model& model_;
  llama::Deltas& deltas_;
  AdapterStore* store_;
  SchedulerOptions options_;
  std::list<std::size_t> waiting_;  // indices of requests, in order of arrival
  std::list<Running> running_;
  Totals totals_;
};

}  // namespace serving
