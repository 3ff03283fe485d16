// LoraBackend: one device's implementation of the operations, its memory, streams and events.
// Hosts call the public functions here and the operations of operations.hpp; authors of a backend
// override the protected do_* functions, which get validated arguments.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rankfold/arguments.hpp"
#include "rankfold/export.hpp"
#include "rankfold/problem.hpp"
#include "rankfold/status.hpp"
#include "rankfold/stream.hpp"
#include "rankfold/tensor_view.hpp"

RANKFOLD_NAMESPACE_BEGIN

namespace detail {
struct BackendAccess;  // the free functions' way to the do_* functions
}

/// The version of this class's virtual functions. A backend registers the version that it was built
/// against; the registry refuses another one, naming both.
inline constexpr std::int32_t kBackendInterfaceVersion = 3;

/// What kind of memory to allocate.
enum class MemoryKind : std::int32_t {
  device = 0,  ///< the backend's device
  pinned = 1,  ///< host memory from which asynchronous copies run
};

/// Which side of a copy is the host.
enum class CopyKind : std::int32_t { host_to_device = 0, device_to_host = 1, device_to_device = 2 };

/// One line of `rankfold list --kernels`. Static strings.
struct StrategyInfo {
  Op op;
  Strategy strategy;
  const char* conditions;      ///< which problems it accepts
  const char* configurations;  ///< its configurations, in order, separated by "; "
};

/// What a call of a problem runs.
struct Choice {
  Strategy strategy = Strategy::automatic;
  std::int32_t configuration =
      0;                         ///< 1 + index in the strategy's list; 0: the backend does not say
  std::int32_t from_tuning = 0;  ///< 1: the file that RANKFOLD_TUNING names decided it
  std::int32_t reserved = 0;
};

/// One device's implementation. Thread-safe: several threads may call at once, on different streams
/// or on one; calls on one stream run one after the other, in the order in which they were made.
/// Every function reports by Status; none throws.
class RANKFOLD_EXPORT LoraBackend {
 public:
  LoraBackend(const LoraBackend&) = delete;
  LoraBackend& operator=(const LoraBackend&) = delete;
  virtual ~LoraBackend();

  const char* name() const noexcept { return name_; }  ///< "reference", "cuda", ...
  Device device() const noexcept { return device_; }

  /// At least `bytes` bytes, 256-byte aligned; bytes 0 gives a null pointer.
  /// Errors: out_of_memory, device_error. May synchronise: never inside a step.
  Result<void*> allocate(std::size_t bytes, MemoryKind kind = MemoryKind::device) noexcept;
  /// Null is legal. The memory must not be in use by a stream.
  void deallocate(void* pointer, MemoryKind kind = MemoryKind::device) noexcept;

  /// Enqueues a copy. Host memory must stay as it is until the stream has run it.
  Status copy(void* destination, const void* source, std::size_t bytes, CopyKind kind,
              Stream stream) noexcept;
  /// Enqueues setting every byte.
  Status fill(void* destination, std::uint8_t value, std::size_t bytes, Stream stream) noexcept;

  /// A new in-order queue. Errors: invalid_argument (mode not of this backend), out_of_memory.
  Result<Stream> create_stream(StreamMode mode = StreamMode::automatic) noexcept;
  /// Waits for what is enqueued, then destroys. Null is legal.
  void destroy_stream(Stream stream) noexcept;
  /// Waits until everything enqueued has run; returns the first error of the stream's work.
  Status synchronize(Stream stream) noexcept;

  /// A new event, never recorded. Errors: out_of_memory, device_error.
  Result<Event> create_event() noexcept;
  /// Null is legal. Waits that were enqueued before still hold.
  void destroy_event(Event event) noexcept;
  /// The event completes when everything enqueued on the stream so far has run. A later record
  /// replaces an earlier one.
  Status record(Event event, Stream stream) noexcept;
  /// Work enqueued on the stream from now on waits for the event; the host does not.
  Status wait(Stream stream, Event event) noexcept;
  /// true: completed, or never recorded. Does not wait.
  Result<bool> query(Event event) noexcept;
  /// The host waits until query() is true. Errors: invalid_argument (null), device_error.
  Status synchronize(Event event) noexcept;

  /// Strategies and configurations, in the order in which they are considered. Returns how many
  /// there are; writes at most `capacity` of them.
  int list_strategies(StrategyInfo* out, int capacity) const noexcept;

 protected:
  /// `name` must be a static string.
  LoraBackend(const char* name, Device device) noexcept : name_(name), device_(device) {}

  virtual Result<void*> do_allocate(std::size_t bytes, MemoryKind kind) = 0;
  virtual void do_deallocate(void* pointer, MemoryKind kind) noexcept = 0;
  virtual Status do_copy(void* destination, const void* source, std::size_t bytes, CopyKind kind,
                         Stream stream) = 0;
  virtual Status do_fill(void* destination, std::uint8_t value, std::size_t bytes,
                         Stream stream) = 0;
  virtual Result<Stream> do_create_stream(StreamMode mode) = 0;
  virtual void do_destroy_stream(Stream stream) noexcept = 0;
  virtual Status do_synchronize(Stream stream) = 0;
  virtual Result<Event> do_create_event() = 0;
  virtual void do_destroy_event(Event event) noexcept = 0;
  virtual Status do_record(Event event, Stream stream) = 0;
  virtual Status do_wait(Stream stream, Event event) = 0;
  virtual Result<bool> do_query(Event event) = 0;
  virtual Status do_synchronize(Event event) = 0;

  virtual int do_list_strategies(StrategyInfo* out, int capacity) const;
  virtual Result<Strategy> do_supports(const Problem& problem) const = 0;
  /// As do_supports, with the configuration. The default knows the one that the call names.
  virtual Result<Choice> do_choose(const Problem& problem) const;
  virtual Result<std::uint64_t> do_workspace_bytes(const Problem& problem) const = 0;

  // The operations. Arguments are validated, the workspace is large enough, the problem is
  // supported and, where no gradients are written, has at least one row. The defaults answer
  // unsupported.
  /// `grouped` holds the pointers into args.memory; `scratch` is the rest of that memory.
  virtual Status do_group_tokens(const GroupTokensArgs& args, const LoraAddressing& grouped,
                                 void* scratch, Stream stream);
  virtual Status do_shrink(const ShrinkArgs& args, const Workspace& workspace, Stream stream);
  virtual Status do_expand(const ExpandArgs& args, const Workspace& workspace, Stream stream);
  virtual Status do_apply_linear(const ApplyLinearArgs& args, const Workspace& workspace,
                                 Stream stream);
  virtual Status do_gather_shrink(const GatherShrinkArgs& args, const Workspace& workspace,
                                  Stream stream);
  virtual Status do_apply_embedding(const ApplyEmbeddingArgs& args, const Workspace& workspace,
                                    Stream stream);
  virtual Status do_shrink_experts(const ShrinkExpertsArgs& args, const Workspace& workspace,
                                   Stream stream);
  virtual Status do_expand_experts(const ExpandExpertsArgs& args, const Workspace& workspace,
                                   Stream stream);
  virtual Status do_apply_experts(const ApplyExpertsArgs& args, const Workspace& workspace,
                                  Stream stream);
  virtual Status do_forward(const ForwardArgs& args, const Workspace& workspace, Stream stream);
  virtual Status do_backward(const BackwardArgs& args, const Workspace& workspace, Stream stream);
  virtual Status do_forward_embedding(const ForwardEmbeddingArgs& args, const Workspace& workspace,
                                      Stream stream);
  virtual Status do_backward_embedding(const BackwardEmbeddingArgs& args,
                                       const Workspace& workspace, Stream stream);
  virtual Status do_backward_experts(const BackwardExpertsArgs& args, const Workspace& workspace,
                                     Stream stream);

 private:
  friend struct detail::BackendAccess;
  const char* name_;
  Device device_;
};

RANKFOLD_NAMESPACE_END
