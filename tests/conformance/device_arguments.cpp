// The arguments of a call as the public functions take them.
#include <algorithm>

#include "device_call.hpp"

namespace rankfold::conformance {

using testing::Grouping;
using testing::HostAddressing;
using testing::HostExperts;
using testing::HostTensor;

AdapterTableView DeviceCall::table() const {
  AdapterTableView view;
  view.shape = call_.shape;
  view.entries = pointer<const AdapterEntry>(table_);
  view.slot_stride =
      std::int64_t{call_.shape.num_experts} * call_.shape.num_slices + call_.slot_padding;
  view.device = backend_.device();
  return view;
}

LoraAddressing DeviceCall::addressing() const {
  const HostAddressing& source = call_.addressing;
  LoraAddressing addressing;
  addressing.mode = source.mode;
  addressing.num_tokens = source.num_tokens;
  addressing.device = backend_.device();
  if (source.mode == AddressingMode::uniform) addressing.uniform_slot = source.uniform_slot;
  addressing.token_slots = pointer<const std::int32_t>(token_slots_);
  if (source.mode == AddressingMode::grouped && source.grouping == Grouping::by_backend) {
    addressing = grouped_;
    addressing.device = backend_.device();
  } else if (source.mode == AddressingMode::grouped) {
    addressing.token_order = pointer<const std::int32_t>(token_order_);
    addressing.segment_offsets = pointer<const std::int32_t>(segment_offsets_);
    addressing.segment_slots = pointer<const std::int32_t>(segment_slots_);
    addressing.num_segments = pointer<const std::int32_t>(num_segments_);
    addressing.max_segments = static_cast<std::int64_t>(source.segment_slots.size());
  }
  addressing.active_rows_bound = source.active_rows_bound;
  addressing.token_weights = pointer<const float>(token_weights_);
  return addressing;
}

ExpertAddressing DeviceCall::expert_addressing() const {
  const HostExperts& source = call_.experts;
  ExpertAddressing addressing;
  addressing.mode = source.mode;
  addressing.x_rows = source.x_rows;
  addressing.num_tokens = call_.addressing.num_tokens;
  addressing.num_rows = source.num_rows;
  addressing.row_begin = source.row_begin;
  addressing.row_end = source.row_end;
  addressing.bound_rows = source.bound_rows;
  addressing.expert_offsets = pointer<const std::int32_t>(expert_offsets_);
  addressing.row_tokens = pointer<const std::int32_t>(row_tokens_);
  addressing.expert_ids = pointer<const std::int32_t>(expert_ids_);
  addressing.top_k = source.top_k;
  addressing.expert_base = source.expert_base;
  addressing.token_slots = pointer<const std::int32_t>(token_slots_);
  addressing.row_weights = pointer<const float>(row_weights_);
  addressing.token_weights = pointer<const float>(token_weights_);
  addressing.device = backend_.device();
  return addressing;
}

Gradients DeviceCall::gradients() const {
  Gradients grads;
  grads.da = pointer<float* const>(da_array_);
  grads.db = pointer<float* const>(db_array_);
  grads.dbias = pointer<float* const>(dbias_array_);
  grads.mode = call_.gradient_mode;
  return grads;
}

// As many rows as the tensor has, so that a call whose addressing says otherwise is refused;
// `rows` where one row stands for all.
ConstTensorView DeviceCall::input(Index piece, const HostTensor& tensor, std::int64_t rows,
                                  std::int64_t stride) const {
  if (piece == kNone) return {};
  return const_matrix(pointer<const void>(piece), tensor.dtype, stride == 0 ? rows : tensor.rows(),
                      tensor.columns(), backend_.device(), stride);
}

TensorView DeviceCall::output(Index piece, const HostTensor& tensor, std::int64_t stride) const {
  if (piece == kNone) return {};
  return matrix(pointer<void>(piece), tensor.dtype, tensor.rows(), tensor.columns(),
                backend_.device(), stride);
}

CallArguments DeviceCall::arguments(Stream stream) const {
  const Device device = backend_.device();
  const std::int64_t tokens = call_.addressing.num_tokens;
  const bool x_of_rows = testing::is_experts(call_.op) && call_.experts.x_rows == XRows::own;
  CallArguments result;
  result.stream = stream;
  if (workspace_ != kNone) {
    result.workspace = {address(workspace_), pieces_[workspace_].image.row_bytes, device};
  }
  const ConstTensorView x =
      input(x_, call_.x, x_of_rows ? call_.experts.num_rows : tokens, call_.x_row_stride);
  const ConstTensorView ids =
      ids_ == kNone
          ? ConstTensorView{}
          : const_vector(pointer<const void>(ids_), call_.ids.dtype, call_.ids.rows(), device);
  const ConstTensorView dy = input(dy_, call_.dy, tokens, call_.y_row_stride);
  const TensorView h = output(h_, call_.h, call_.h_row_stride);
  const TensorView y = output(y_, call_.y, call_.y_row_stride);
  const TensorView dx = output(dx_, call_.dx, call_.dx_row_stride);
  const TensorView ds = output(ds_, call_.ds, call_.ds_row_stride);
  const CallOptions& options = call_.options;
  switch (call_.op) {
    case Op::group_tokens:
      result.args = GroupTokensArgs{tokens,
                                    call_.shape.num_slots,
                                    pointer<const std::int32_t>(token_slots_),
                                    pointer<void>(grouping_),
                                    pieces_[grouping_].image.row_bytes,
                                    device};
      break;
    case Op::shrink:
      result.args = ShrinkArgs{x, table(), addressing(), h, options};
      break;
    case Op::expand:
      result.args = ExpandArgs{h, table(), addressing(), y, options};
      break;
    case Op::gather_shrink:
      result.args = GatherShrinkArgs{ids, table(), addressing(), h, options};
      break;
    case Op::apply_embedding:
      result.args = ApplyEmbeddingArgs{ids, table(), addressing(), y, options};
      break;
    case Op::shrink_experts:
      result.args = ShrinkExpertsArgs{x, table(), expert_addressing(), h, options};
      break;
    case Op::expand_experts:
      result.args = ExpandExpertsArgs{h, table(), expert_addressing(), y, options};
      break;
    case Op::apply_experts:
      result.args = ApplyExpertsArgs{x, table(), expert_addressing(), y, options};
      break;
    case Op::forward:
      result.args = ForwardArgs{x, table(), addressing(), y, h, call_.dropout, options};
      break;
    case Op::backward:
      result.args = BackwardArgs{dy, x,           h,  table(),       addressing(),
                                 dx, gradients(), ds, call_.dropout, options};
      break;
    case Op::forward_embedding:
      result.args = ForwardEmbeddingArgs{ids, table(), addressing(), y, h, options};
      break;
    case Op::backward_embedding:
      result.args =
          BackwardEmbeddingArgs{dy, ids, h, table(), addressing(), gradients(), ds, options};
      break;
    default:
      result.args = ApplyLinearArgs{x, table(), addressing(), y, options};
      break;
  }
  return result;
}

Problem DeviceCall::problem() {
  plan();
  Problem problem = problem_of(arguments({}));
  if (call_.addressing.mode == AddressingMode::grouped &&
      call_.addressing.grouping == Grouping::by_backend) {
    // As group_tokens will say.
    problem.addressing = AddressingMode::grouped;
    problem.bounds.rows = problem.bounds.tokens = call_.addressing.num_tokens;
    problem.bounds.segments =
        std::min<std::int64_t>(call_.addressing.num_tokens, call_.shape.num_slots);
    const std::int64_t bound = call_.addressing.active_rows_bound;
    problem.bounds.active_rows =
        bound < 0 ? problem.bounds.rows : std::min(bound, problem.bounds.rows);
  }
  return problem;
}

}  // namespace rankfold::conformance
