// LoraPass: the seam between the training code and rankfold. One object serves one thread: it owns
// the stream, the workspace, the h that forward saves for backward, and the gradients.
#pragma once

#include <cstdint>
#include <rankfold/rankfold.hpp>
#include <span>
#include <vector>

#include "llama/matrix.hpp"
#include "train/adapter.hpp"

namespace train {

class LoraPass {
 public:
  /// For passes of at most max_rows rows. All memory is taken here. Throws rankfold::Error.
  LoraPass(const Adapter& adapter, std::int64_t max_rows);

  /// y += scaling (x A^T) B^T. Saves h = x A^T.
  void forward(int target, const llama::Matrix& x, llama::Matrix& y);
  /// d_x += scaling (d_y B) A, and the gradients of A and B, from the h of the same pass.
  /// d_x null: nobody needs it.
  void backward(int target, const llama::Matrix& d_y, const llama::Matrix& x, llama::Matrix* d_x);
  /// After backward() of every target: the gradients, in the order of Adapter::parameters().
  std::span<const float> gradients();

 private:
  struct Target {
    rankfold::AdapterTableView table;
    rankfold::Buffer h;
    rankfold::Buffer gradient_pointers;  // of A by slice, then of B by slice
  };
  rankfold::LoraAddressing addressing(std::int64_t num_rows) const;
  rankfold::ForwardArgs forward_args(const Target& target, std::int64_t num_rows) const;
  rankfold::BackwardArgs backward_args(const Target& target, std::int64_t num_rows) const;
  const void* to_device(const llama::Matrix& from, const rankfold::Buffer& to);
  void finish(llama::Matrix& result, const rankfold::Buffer& device);
  void copy(void* to, const void* from, std::size_t bytes, rankfold::CopyKind kind);

  rankfold::LoraBackend* backend_;
  std::int64_t max_rows_;
  bool on_host_;
  std::vector<Target> targets_;  // table.entries null: nothing is adapted
  rankfold::Buffer workspace_;
  rankfold::Buffer device_gradients_;
  std::vector<float> gradients_;
  rankfold::Buffer device_x_, device_y_, device_d_x_;  // only where the device is not the host
  rankfold::OwnedStream stream_;  // last: it waits for its work before the memory above goes
};

}  // namespace train
