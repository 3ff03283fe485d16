// The server: steps of a batch of requests, each row compared with what its adapter must give.
#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <random>
#include <vector>

#include "directory.hpp"

namespace swap_under_load {

/// Of the steps since the last call of Server::take().
struct StepCounts {
  std::int64_t rows = 0;  ///< all of them checked
  std::int64_t wrong_rows = 0;
  std::vector<float> milliseconds;  ///< one a step, from its first call until y is on the host
};

class Server {
 public:
  Server(rankfold::LoraBackend& backend, rankfold::AdapterPool& pool, Directory& directory,
         std::int32_t num_slots, std::uint32_t seed);

  /// The stream of the steps.
  rankfold::Stream stream() const { return stream_; }
  /// Until `stop`; then every adapter is unpinned.
  void run(const std::atomic<bool>& stop);
  /// From any thread.
  StepCounts take();

 private:
  // One row of the batch: a sequence that gets one token a step.
  struct Request {
    std::optional<Resident> who;  // nothing: the bare base
    int steps_left = 0;
  };
  struct Target {
    rankfold::AdapterTableView table;
    std::vector<float> host_base;  // what the base model gave, before the delta
    rankfold::Buffer x, base, y;   // device
    rankfold::Buffer host_y;       // pinned
  };

  void make_target(std::int32_t index);
  /// The request is over: another one takes its row.
  void admit(Request& request);
  bool pin_any(Request& request);
  void step();
  rankfold::LoraAddressing address();
  /// Returns how many rows are wrong, and prints the first of them.
  std::int64_t check(const std::vector<Request>& requests) const;

  rankfold::LoraBackend& backend_;
  rankfold::AdapterPool& pool_;
  Directory& directory_;
  std::size_t most_pinned_;
  std::mt19937 random_;
  rankfold::OwnedStream stream_;
  std::vector<Request> requests_;
  std::array<Target, kNumTargets> targets_;
  rankfold::Buffer host_slots_, slots_, grouping_, workspace_;
  std::uint64_t num_steps_ = 0;
  std::mutex mutex_;
  StepCounts counts_;
};

}  // namespace swap_under_load
