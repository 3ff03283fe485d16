// Deltas: the one seam between the base model and rankfold. The model computes y = x W^T and hands
// x and y over; this class owns everything that an operation needs beside them: the step's
// addressing, the workspace, the views of the tables, and copies where the device is not the host.
#pragma once

#include <cstdint>
#include <rankfold/rankfold.hpp>
#include <span>
#include <vector>

#include "llama/matrix.hpp"

namespace llama {

/// Which rows of a step x and y hold.
enum class Rows { all, logits };

class Deltas {
 public:
  /// The bare base: every call returns at once.
  Deltas() = default;
  /// `tables` in the order of Targets::specs(); a step has at most max_rows rows. All memory is
  /// taken here, none in a step. Throws rankfold::Error.
  Deltas(rankfold::LoraBackend& backend, std::vector<rankfold::AdapterTableView> tables,
         std::int64_t max_rows, rankfold::StreamMode mode = rankfold::StreamMode::automatic);

  Deltas(Deltas&&) = default;
  Deltas& operator=(Deltas&&) = delete;  // memory of the one before would go before its stream

  /// Adapters are published between steps on this stream.
  rankfold::Stream stream() const { return stream_.get(); }
  std::int64_t max_rows() const { return max_rows_; }

  /// Says which slot each row of the step uses, and which rows go through the head. Rows are
  /// grouped by slot here, once; every layer of the step reuses the result.
  void begin_step(std::span<const std::int32_t> slots, std::span<const std::int64_t> logit_rows);

  /// y += scaling (x A^T B^T + bias), each row by its own adapter. y is ready on return.
  void apply_linear(int target, const Matrix& x, Matrix& y, Rows rows = Rows::all);
  /// y += scaling A[:, id] B^T.
  void apply_embedding(int target, std::span<const std::int32_t> ids, Matrix& y);

  /// Time spent in here since construction, waiting included.
  double seconds() const { return seconds_; }

 private:
  // Row -> slot on the device, and its grouped form. One for each Rows.
  struct StepRows {
    std::vector<std::int32_t> slots;
    rankfold::Buffer device_slots;
    rankfold::Buffer grouping;
    rankfold::LoraAddressing addressing;
  };
  StepRows& rows(Rows which) { return step_[which == Rows::all ? 0 : 1]; }
  void group(StepRows& rows);
  std::uint64_t largest_workspace() const;

  // x and y where the backend sees them: the caller's own memory on a CPU backend.
  rankfold::ConstTensorView to_device(const void* data, rankfold::DType dtype,
                                      std::int64_t num_rows, std::int64_t columns);
  rankfold::TensorView to_device(Matrix& y);
  void finish(Matrix& y);
  void copy(void* to, const void* from, std::size_t bytes, rankfold::CopyKind kind);

  rankfold::LoraBackend* backend_ = nullptr;
  std::vector<rankfold::AdapterTableView> tables_;
  std::int64_t max_rows_ = 0;
  bool on_host_ = true;
  rankfold::Buffer workspace_;
  rankfold::Buffer device_x_;  // these two only where the device is not the host
  rankfold::Buffer device_y_;
  StepRows step_[2];
  double seconds_ = 0;
  rankfold::OwnedStream stream_;  // last: it waits for its work before the memory above goes
};

}  // namespace llama
