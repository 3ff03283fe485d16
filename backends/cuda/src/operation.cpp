#include "operation.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

Status make_rows(const LoraAddressing& addressing, const AdapterTableView& table, const Parts& parts,
                 cudaStream_t stream, Rows* rows) noexcept {
  *rows = {};
  rows->num_slots = table.shape.num_slots;
  rows->slot_stride = table.slot_stride;
  rows->num_slices = table.shape.num_slices;
  rows->num_tokens = addressing.num_tokens;
  rows->token_weights = addressing.token_weights;
  switch (addressing.mode) {
    case AddressingMode::uniform:
      rows->kind = Rows::uniform;
      rows->uniform_slot = addressing.uniform_slot;
      return {};
    case AddressingMode::tokens:
      rows->token_slots = addressing.token_slots;
      return {};
    case AddressingMode::grouped:
      break;
  }
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
