// What the operations have in common: the device, the workspace, and how rows find entries.
#pragma once

#include "backend.hpp"
#include "kernels/backward_tensor.hpp"
#include "kernels/general.hpp"
#include "kernels/pairs.hpp"
#include "plan.hpp"
#include "rankfold/problem.hpp"
#include "rows.cuh"
#include "runtime.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

/// The parts of a workspace as pointers.
class Parts {
 public:
  Parts(const Problem& problem, const Workspace& workspace) noexcept
      : plan_(plan_workspace(problem)),
        base_(static_cast<std::byte*>(workspace.data)),
        columns_(std::int64_t{problem.shape.num_slices} * problem.shape.max_rank) {}
  std::int32_t* row_slots() const noexcept { return at<std::int32_t>(plan_.row_slots); }
  Hidden h(std::int64_t first_row = 0) const noexcept {
    return {at<float>(plan_.h), columns_, first_row};
  }
  Hidden ds() const noexcept { return {at<float>(plan_.ds), columns_, 0}; }
  float* delta() const noexcept { return at<float>(plan_.delta); }
  std::int32_t* order() const noexcept { return at<std::int32_t>(plan_.order); }
  std::int32_t* ends() const noexcept { return at<std::int32_t>(plan_.ends); }
  BackwardPartials backward_partials() const noexcept {
    return {at<float>(plan_.ds_partials),   at<float>(plan_.db_partials),
            at<float>(plan_.da_partials),   at<float>(plan_.whole_ds),
            at<float>(plan_.packed_h),      at<std::int32_t>(plan_.da_counts),
            at<float>(plan_.dbias_partials)};
  }
  std::int32_t* counts() const noexcept { return at<std::int32_t>(plan_.counts); }
  float* partials() const noexcept { return at<float>(plan_.h); }
  std::int64_t h_columns() const noexcept { return columns_; }
  /// What tokens are grouped into.
  std::int32_t* segments() const noexcept { return at<std::int32_t>(plan_.segments); }
  PairParts pairs(int num_experts) const noexcept {
    return {{at<int4>(plan_.pair_rows), at<int4>(plan_.pair_blocks), at<int2>(plan_.pair_experts),
             num_experts},
            at<float>(plan_.h)};
  }

 private:
  template <class T>
  T* at(std::size_t offset) const noexcept {
    return reinterpret_cast<T*>(base_ + offset);
  }
  WorkspacePlan plan_;
  std::byte* base_;
  std::int64_t columns_;
};

inline Hidden hidden_of(const ConstTensorView& h) noexcept {
  return {const_cast<float*>(static_cast<const float*>(h.data)), h.strides[0], 0};
}
inline Hidden hidden_of(const TensorView& h) noexcept {
  return {static_cast<float*>(h.data), h.strides[0], 0};
}

/// y = 0, all rows and columns.
Status zero_rows(const TensorView& y, cudaStream_t stream) noexcept;
/// Rows of LoraAddressing, grouped by places: for kernels that need not visit rows without an
/// adapter.
Rows make_places(const LoraAddressing& addressing, const AdapterTableView& table) noexcept;
/// Rows of LoraAddressing; grouped addressing is turned into a slot a row, in the workspace.
Status make_rows(const LoraAddressing& addressing, const AdapterTableView& table,
                 const Parts& parts, cudaStream_t stream, Rows* rows) noexcept;
Rows make_rows(const ExpertAddressing& addressing, const AdapterTableView& table) noexcept;

inline RowRange all_rows(const LoraAddressing& addressing) noexcept {
  return {0, addressing.num_tokens};
}
inline RowRange window(const ExpertAddressing& addressing) noexcept {
  const std::int64_t end = addressing.row_end < 0 ? addressing.num_rows : addressing.row_end;
  return {addressing.row_begin, end - addressing.row_begin};
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END

/// Leaves the function with a status that is not ok.
#define RANKFOLD_CUDA_TRY(call)                                          \
  do {                                                                   \
    if (::rankfold::Status status = (call); !status.ok()) return status; \
  } while (false)
