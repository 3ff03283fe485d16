// A HostCall on a backend: all its memory in one buffer with guards, its arguments, its outputs.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "guard.hpp"
#include "host_call.hpp"
#include "rankfold/memory.hpp"
#include "rankfold/operations.hpp"

namespace rankfold::conformance {

/// The arguments of one operation, as the public function takes them.
struct CallArguments {
  std::variant<GroupTokensArgs, ShrinkArgs, ExpandArgs, ApplyLinearArgs, GatherShrinkArgs,
               ApplyEmbeddingArgs, ShrinkExpertsArgs, ExpandExpertsArgs, ApplyExpertsArgs,
               ForwardArgs, BackwardArgs, ForwardEmbeddingArgs, BackwardEmbeddingArgs>
      args;
  Workspace workspace;
  Stream stream;
};

/// Calls the operation with a copy of the arguments that is overwritten as soon as the call
/// returns: what a backend still needs then, it must have copied. `grouped` receives the result of
/// group_tokens.
Status launch(LoraBackend& backend, const CallArguments& arguments,
              LoraAddressing* grouped = nullptr);

/// The problem of the arguments; not for group_tokens.
Problem problem_of(const CallArguments& arguments);

struct CallOutcome {
  Status status;
  testing::HostTensor y, h, dx, ds;                ///< after the call, where the operation has them
  std::vector<testing::HostTensor> da, db, dbias;  ///< [entries], likewise
  testing::HostTensor token_order, segment_offsets, segment_slots, num_segments;
  std::string damage;  ///< memory that was written where nothing may write
};

/// One call's memory on the backend: one buffer with guards, or one for each tensor where the
/// environment's RANKFOLD_TEST_SEPARATE is 1. Not movable: arguments point into it. Waits for its
/// stream when it goes, so the stream must outlive it.
class DeviceCall {
 public:
  DeviceCall(LoraBackend& backend, const testing::HostCall& call);
  ~DeviceCall();
  DeviceCall(const DeviceCall&) = delete;
  DeviceCall& operator=(const DeviceCall&) = delete;

  /// Allocates and enqueues the upload. Asks for the workspace of the call's own options and of
  /// `strategies` besides.
  Status prepare(Stream stream, const std::vector<Strategy>& strategies = {});
  /// Enqueues the initial content of everything again.
  Status reset(Stream stream);
  /// Enqueues new content of the addressing arrays at their old addresses; same sizes.
  Status update(const testing::HostAddressing& addressing, Stream stream);
  Status update(const testing::HostAddressing& addressing, const testing::HostExperts& experts,
                Stream stream);

  /// The problem of the operation, without any memory.
  Problem problem();
  /// Arguments of the operation itself (not of a group_tokens before it).
  CallArguments arguments(Stream stream) const;
  /// Where the call's token_slots stand on the device; null where it has none.
  std::int32_t* token_slots() const noexcept { return pointer<std::int32_t>(token_slots_); }
  /// All memory of the call; a null pointer with RANKFOLD_TEST_SEPARATE=1.
  void* memory() const noexcept { return buffer_.data(); }
  std::size_t memory_bytes() const noexcept { return used_; }
  /// Enqueues the call: group_tokens where the addressing asks for it, then the operation.
  Status run(Stream stream, const CallOptions& options);
  /// Synchronises and reads everything back.
  CallOutcome collect(Stream stream);

 private:
  struct Piece {
    testing::GuardedImage image;
    std::size_t begin = 0;
    Buffer own = {};  ///< with RANKFOLD_TEST_SEPARATE=1, in place of a part of buffer_
    std::size_t own_bytes() const noexcept { return image.offset + image.payload_bytes(); }
  };
  using Index = std::size_t;
  static constexpr Index kNone = static_cast<Index>(-1);

  Index add(testing::GuardedImage image);
  Index add_writable(testing::GuardedImage image);
  void plan();
  void plan_addressing();
  void plan_experts();
  void plan_entries();
  void plan_gradients();
  void write_entries();
  void write_gradients();
  void refresh(Index piece, const testing::HostTensor& tensor);
  void* address(Index piece) const noexcept;
  template <class T>
  T* pointer(Index piece) const noexcept {
    return piece == kNone ? nullptr : static_cast<T*>(address(piece));
  }
  LoraAddressing addressing() const;
  ExpertAddressing expert_addressing() const;
  AdapterTableView table() const;
  Gradients gradients() const;
  ConstTensorView input(Index piece, const testing::HostTensor& tensor, std::int64_t rows,
                        std::int64_t stride) const;
  TensorView output(Index piece, const testing::HostTensor& tensor, std::int64_t stride) const;
  Status allocate();
  std::uint64_t workspace_need(const std::vector<Strategy>& strategies, Status& status);
  Status transfer(Stream stream, CopyKind kind, std::vector<std::byte>& host);
  void poison_guards(bool poison) const noexcept;

  LoraBackend& backend_;
  testing::HostCall call_;
  std::vector<Piece> pieces_;
  std::vector<Index> a_, b_, bias_, da_, db_, dbias_;
  Index x_ = kNone, ids_ = kNone, h_ = kNone, y_ = kNone, table_ = kNone, workspace_ = kNone;
  Index token_slots_ = kNone, token_order_ = kNone, segment_offsets_ = kNone,
        segment_slots_ = kNone, num_segments_ = kNone, token_weights_ = kNone, grouping_ = kNone;
  Index expert_offsets_ = kNone, row_tokens_ = kNone, expert_ids_ = kNone, row_weights_ = kNone;
  Index dy_ = kNone, dx_ = kNone, ds_ = kNone, da_array_ = kNone, db_array_ = kNone,
        dbias_array_ = kNone;
  std::vector<std::byte> host_;  ///< what is uploaded
  std::size_t used_ = 0;
  Buffer buffer_;
  Stream last_stream_;  ///< whose work may still use host_ and buffer_
  LoraAddressing grouped_;
};

/// prepare, run and collect on one stream.
CallOutcome run_call(LoraBackend& backend, const testing::HostCall& call, Stream stream);

}  // namespace rankfold::conformance
