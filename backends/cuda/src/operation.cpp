#include "operation.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

Status zero_rows(const TensorView& y, cudaStream_t stream) noexcept {
  const std::size_t width = y.dtype == DType::f32 ? 4 : 2;
  const auto rows = static_cast<std::size_t>(y.sizes[0]),
             bytes = static_cast<std::size_t>(y.sizes[1]) * width;
  if (rows == 0 || bytes == 0) return {};
  const std::size_t pitch = rows == 1 ? bytes : static_cast<std::size_t>(y.strides[0]) * width;
  return to_status(cudaMemset2DAsync(y.data, pitch, 0, bytes, rows, stream), "cudaMemset2DAsync");
}

Rows make_places(const LoraAddressing& addressing, const AdapterTableView& table) noexcept {
  Rows rows;
  rows.num_slots = table.shape.num_slots;
  rows.slot_stride = table.slot_stride;
  rows.num_slices = table.shape.num_slices;
  rows.num_tokens = addressing.num_tokens;
  rows.token_weights = addressing.token_weights;
  switch (addressing.mode) {
    case AddressingMode::uniform:
      rows.kind = Rows::uniform;
      rows.uniform_slot = addressing.uniform_slot;
      break;
    case AddressingMode::tokens:
      rows.token_slots = addressing.token_slots;
      break;
    case AddressingMode::grouped:
      rows.kind = Rows::by_segments;
      rows.order = addressing.token_order;
      rows.segment_offsets = addressing.segment_offsets;
      rows.segment_slots = addressing.segment_slots;
      rows.num_segments = addressing.num_segments;
      rows.max_segments = addressing.max_segments;
      break;
  }
  return rows;
}

Status make_rows(const LoraAddressing& addressing, const AdapterTableView& table,
                 const Parts& parts, cudaStream_t stream, Rows* rows) noexcept {
  *rows = make_places(addressing, table);
  if (rows->kind != Rows::by_segments) return {};
  rows->kind = Rows::by_token;
  rows->token_slots = parts.row_slots();
  if (addressing.num_tokens == 0) return {};
  return scatter_slots(addressing, table.shape.num_slots, parts.row_slots(), stream);
}

Rows make_rows(const ExpertAddressing& addressing, const AdapterTableView& table) noexcept {
  Rows rows;
  rows.kind = addressing.mode == ExpertMode::gather ? Rows::by_ids : Rows::by_offsets;
  rows.num_slots = table.shape.num_slots;
  rows.num_experts = table.shape.num_experts;
  rows.slot_stride = table.slot_stride;
  rows.num_slices = table.shape.num_slices;
  rows.num_tokens = addressing.num_tokens;
  rows.top_k = addressing.top_k > 0 ? addressing.top_k : 1;
  rows.expert_base = addressing.expert_base;
  rows.own_x = addressing.x_rows == XRows::own;
  rows.token_slots = addressing.token_slots;
  rows.expert_offsets = addressing.expert_offsets;
  rows.row_tokens = addressing.row_tokens;
  rows.expert_ids = addressing.expert_ids;
  rows.row_weights = addressing.row_weights;
  rows.token_weights = addressing.token_weights;
  return rows;
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
