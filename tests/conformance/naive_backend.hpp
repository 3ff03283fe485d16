// A backend of plain float loops that can be made wrong on purpose: what the conformance cases must
// accept as it is, and must refuse with each mutation.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "rankfold/backend.hpp"

namespace rankfold::conformance {

enum class Mutation {
  none,
  next_slot,          ///< a row uses the slot after its own
  clamps_slot,        ///< a slot out of range becomes the nearest in range
  double_rounding,    ///< the delta is rounded to y's dtype before it is added
  truncates,          ///< y is cut instead of rounded
  ties_away,          ///< ties go away from zero
  tf32,               ///< x and A lose 13 bits
  half_rank_vector,   ///< h in bf16
  half_accumulation,  ///< sums of h in f16
  folded_scaling,     ///< scaling times B, rounded to B's dtype
  unscaled_bias,
  forgets_bias,
  forgets_token_weight,
  squared_token_weight,
  reads_past_rank,   ///< one more column of h and B
  drops_rank_32,     ///< the last of 32 ranks is left out
  drops_tail_of_in,  ///< in is cut to a multiple of 8
  drops_tail_of_out,
  rank_of_first_slice,  ///< A5
  h_stride_of_rank,     ///< slices of h start at multiples of the rank
  zeroes_skipped_rows,
  accumulates_always,  ///< y_mode is ignored
  overwrites_always,
  dense_y,  ///< y's row stride is ignored
  dense_x,
  dense_a,
  dense_b,
  writes_input,
  writes_past_workspace,
  trusts_workspace,    ///< sums start from what the workspace holds
  leaks_rows,          ///< 0 times the row before is added
  leaks_adapters,      ///< 0 times another adapter's B is added
  reads_all_segments,  ///< num_segments is ignored
  unstable_grouping,
  groups_every_row,  ///< rows without slot are counted
  remembers_slots,   ///< the slots of the first call at an address are used for ever
  ignores_in_limit,
  clamps_id,
  order_of_batch,          ///< sums run backwards in batches of more than 8 rows
  order_of_call,           ///< sums run backwards in every second call
  argument_pointer,        ///< deferred work reads the caller's argument struct
  runs_at_once,            ///< operations do not wait for what the stream did before
  workspace_falls,         ///< workspace_bytes is not monotone
  writes_before_refusing,  ///< a strategy that is declined has already written
  // Experts.
  row_weight_twice,
  forgets_row_weight,
  row_weight_in_shrink,
  token_weight_of_row,  ///< the weight of the token that has the row's number
  adds_expert_base,
  forgets_expert_base,
  wraps_expert_ids,   ///< modulo num_experts
  narrow_expert_ids,  ///< id - expert_base in 32 bits
  window_from_row_0,  ///< as many rows as the window has, from the first
  ignores_window,     ///< up to row_end, from the first
  zeroes_outside_window,
  writes_past_last_offset,
  x_rows_swapped,
  slot_of_row,           ///< the slot of the token that has the row's number
  expert_major_entries,  ///< entries indexed (expert, slot, slice)
  expert_once,           ///< the second row of an expert in a token is left out
  adds_bias_of_experts,
  order_of_window,  ///< sums run backwards in windows that are not the whole
  next_expert,
  // Training.
  scaled_h,  ///< the h that forward returns is multiplied by the scaling
  undropped_forward,
  zero_da,
  zero_db,
  zero_ds,
  transposed_da,
  transposed_db,
  doubly_scaled_da,
  doubly_scaled_db,
  unscaled_ds,
  unscaled_dbias,
  da_of_undropped_x,
  mask_of_next_column,
  mask_without_row_base,
  mask_of_first_slice,
  mask_of_low_seed,  ///< the upper half of the seed is ignored
  mask_of_place,     ///< rows counted within their adapter
  unscaled_mask,     ///< kept x is not multiplied by 1 / (1 - p)
  dx_without_dropout,
  dx_of_first_slice,
  dx_rounded_by_slice,
  idle_gradients_left,    ///< overwriting leaves slots without rows
  idle_gradients_zeroed,  ///< accumulating zeroes them
  gradients_always_added,
  gradients_always_overwritten,
  forgets_token_weight_in_backward,
  da_of_next_slot,
  da_by_position,  ///< embedding: by the row's number instead of the id
  da_of_clamped_id,
  shared_a_twice,
  shared_a_last,  ///< the last of those that share it alone
  ignores_given_h,
  leaks_gradients,  ///< 0 times the rows of other slots
  tf32_gradients,
  unordered_gradients,  ///< every second call adds rows in reverse
};

/// "next_slot", ...; all but none.
struct NamedMutation {
  Mutation mutation;
  const char* name;
  const char* filter;  ///< the cases that must find it
};
const std::vector<NamedMutation>& all_mutations();

/// Streams: inline_ runs at once, worker when it is synchronised. Strategies: general alone.
class NaiveBackend final : public LoraBackend {
 public:
  explicit NaiveBackend(Mutation mutation = Mutation::none) noexcept
      : LoraBackend("naive", {}), mutation_(mutation) {}

 protected:
  Result<void*> do_allocate(std::size_t bytes, MemoryKind kind) override;
  void do_deallocate(void* pointer, MemoryKind kind) noexcept override;
  Status do_copy(void* destination, const void* source, std::size_t bytes, CopyKind kind,
                 Stream stream) override;
  Status do_fill(void* destination, std::uint8_t value, std::size_t bytes, Stream stream) override;
  Result<Stream> do_create_stream(StreamMode mode) override;
  void do_destroy_stream(Stream stream) noexcept override;
  Status do_synchronize(Stream stream) override;
  Result<Event> do_create_event() override;
  void do_destroy_event(Event event) noexcept override;
  Status do_record(Event event, Stream stream) override;
  Status do_wait(Stream stream, Event event) override;
  Result<bool> do_query(Event event) override;
  Status do_synchronize(Event event) override;
  int do_list_strategies(StrategyInfo* out, int capacity) const override;
  Result<Strategy> do_supports(const Problem& problem) const override;
  Result<std::uint64_t> do_workspace_bytes(const Problem& problem) const override;
  Status do_group_tokens(const GroupTokensArgs& args, const LoraAddressing& grouped, void* scratch,
                         Stream stream) override;
  Status do_shrink(const ShrinkArgs& args, const Workspace& workspace, Stream stream) override;
  Status do_expand(const ExpandArgs& args, const Workspace& workspace, Stream stream) override;
  Status do_apply_linear(const ApplyLinearArgs& args, const Workspace& workspace,
                         Stream stream) override;
  Status do_gather_shrink(const GatherShrinkArgs& args, const Workspace& workspace,
                          Stream stream) override;
  Status do_apply_embedding(const ApplyEmbeddingArgs& args, const Workspace& workspace,
                            Stream stream) override;
  Status do_shrink_experts(const ShrinkExpertsArgs& args, const Workspace& workspace,
                           Stream stream) override;
  Status do_expand_experts(const ExpandExpertsArgs& args, const Workspace& workspace,
                           Stream stream) override;
  Status do_apply_experts(const ApplyExpertsArgs& args, const Workspace& workspace,
                          Stream stream) override;
  Status do_forward(const ForwardArgs& args, const Workspace& workspace, Stream stream) override;
  Status do_backward(const BackwardArgs& args, const Workspace& workspace, Stream stream) override;
  Status do_forward_embedding(const ForwardEmbeddingArgs& args, const Workspace& workspace,
                              Stream stream) override;
  Status do_backward_embedding(const BackwardEmbeddingArgs& args, const Workspace& workspace,
                               Stream stream) override;

 private:
  friend struct NaiveRun;
  friend class NaiveExperts;
  friend class NaiveTraining;
  template <class Args>
  Status experts_later(const Args& args, Stream stream);
  template <class Args>
  Status training_later(const Args& args, Stream stream);
  bool is(Mutation mutation) const noexcept { return mutation_ == mutation; }
  Status enqueue(Stream stream, std::function<void()> work, bool is_operation = true);
  template <class Args>
  Status run_later(const Args& args, const Workspace& workspace, Stream stream);

  Mutation mutation_;
  int calls_ = 0;
  std::vector<std::pair<const void*, std::vector<std::int32_t>>> remembered_;
};

}  // namespace rankfold::conformance
