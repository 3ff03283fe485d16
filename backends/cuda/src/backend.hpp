// The CUDA backend: LoraBackend on one NVIDIA GPU.
#pragma once

#include <cuda_runtime_api.h>

#include "rankfold/backend.hpp"
#include "rankfold/tuning.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

/// What launches ask of the device; read once, when the backend is made.
struct DeviceTraits {
  int index = 0;
  int num_sms = 1;
  int major = 0;
  int minor = 0;
  int shared_bytes = 0;  ///< that a block may have
  bool hopper_code =
      false;  ///< kernels of Hopper's own instructions run: it is one, and they were built
};

class CudaBackend final : public LoraBackend {
 public:
  explicit CudaBackend(const DeviceTraits& traits) noexcept
      : LoraBackend("cuda", Device{DeviceType::cuda, traits.index}), traits_(traits) {}

  /// Before anybody else has the backend.
  void set_tuning(const TuningTable& tuning) noexcept { tuning_ = tuning; }

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
  Result<Choice> do_choose(const Problem& problem) const override;
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
  /// The problem with what the tuning file says of it, where that can be in the workspace of the
  /// built-in choice.
  Problem tuned(const Problem& problem) const;
  /// Of a problem whose options are final.
  Result<Strategy> strategy_of(const Problem& problem) const;

  const DeviceTraits traits_;
  TuningTable tuning_;
};

inline cudaStream_t native(Stream stream) noexcept {
  return static_cast<cudaStream_t>(stream.handle);
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
