// Swapping under load, the stepping thread: several steps are on their way at once, and every row
// of each is compared with the version that its handle names.
#pragma once

#include <random>
#include <span>
#include <vector>

#include "rankfold/backend.hpp"
#include "swap_board.hpp"

namespace rankfold::testing {

struct SwapStepCounts {
  std::int64_t steps = 0;
  std::int64_t grouped_steps = 0;  ///< the others: tokens
  std::int64_t rows = 0;           ///< with an adapter
  std::int64_t bare_rows = 0;
  std::int64_t wrong_rows = 0;
  std::int64_t stale_handles = 0;  ///< refused by pin()
  std::int64_t versions_seen = 0;
};

/// Steps on streams that run on their own, in turn.
class SwapSteps {
 public:
  SwapSteps(LoraBackend& backend, AdapterPool& pool, std::span<const Stream> streams,
            SwapBoard& board, SwapFailures& failures, unsigned seed);
  ~SwapSteps();
  SwapSteps(const SwapSteps&) = delete;
  SwapSteps& operator=(const SwapSteps&) = delete;

  /// Until the board is stopped; what was enqueued has run and been checked on return.
  void run();
  const SwapStepCounts& counts() const { return counts_; }

 private:
  struct Batch;
  void fill(Batch& batch);
  Status enqueue(Batch& batch, Stream stream);
  /// Waits for the batch, when it is on its way, and checks it.
  void finish(Batch& batch);
  void check_row(const Batch& batch, std::size_t row);
  void finish_all();
  void expect(const Status& status);

  LoraBackend& backend_;
  AdapterPool& pool_;
  std::span<const Stream> streams_;
  SwapBoard& board_;
  SwapFailures& failures_;
  std::mt19937 random_;
  std::vector<std::unique_ptr<Batch>> batches_;
  AdapterTableView tables_[kSwapTargets];
  Buffer x_[kSwapTargets];
  std::vector<float> start_[kSwapTargets];
  SwapStepCounts counts_;
};

}  // namespace rankfold::testing
