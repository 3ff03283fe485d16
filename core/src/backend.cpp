// The public side of LoraBackend: what is the same for every backend stands here, once.
#include "rankfold/backend.hpp"

#include "guard.hpp"

RANKFOLD_NAMESPACE_BEGIN

using detail::guarded;

namespace {

Status null_handle(const char* function, const char* argument) noexcept {
  return Status::format(StatusCode::invalid_argument,
                        "%s: %s is null; it should be one that the backend or the host made",
                        function, argument);
}

}  // namespace

LoraBackend::~LoraBackend() = default;

Result<void*> LoraBackend::allocate(std::size_t bytes, MemoryKind kind) noexcept {
  if (bytes == 0) return static_cast<void*>(nullptr);
  return guarded([&] { return do_allocate(bytes, kind); });
}

void LoraBackend::deallocate(void* pointer, MemoryKind kind) noexcept {
  if (pointer != nullptr) do_deallocate(pointer, kind);
}

Status LoraBackend::copy(void* destination, const void* source, std::size_t bytes, CopyKind kind,
                         Stream stream) noexcept {
  if (stream.handle == nullptr) return null_handle("copy", "stream");
  if (bytes == 0) return {};
  if (destination == nullptr) return null_handle("copy", "destination");
  if (source == nullptr) return null_handle("copy", "source");
  return guarded([&] { return do_copy(destination, source, bytes, kind, stream); });
}

Status LoraBackend::fill(void* destination, std::uint8_t value, std::size_t bytes,
                         Stream stream) noexcept {
  if (stream.handle == nullptr) return null_handle("fill", "stream");
  if (bytes == 0) return {};
  if (destination == nullptr) return null_handle("fill", "destination");
  return guarded([&] { return do_fill(destination, value, bytes, stream); });
}

Result<Stream> LoraBackend::create_stream(StreamMode mode) noexcept {
  return guarded([&] { return do_create_stream(mode); });
}

void LoraBackend::destroy_stream(Stream stream) noexcept {
  if (stream.handle != nullptr) do_destroy_stream(stream);
}

Status LoraBackend::synchronize(Stream stream) noexcept {
  if (stream.handle == nullptr) return null_handle("synchronize", "stream");
  return guarded([&] { return do_synchronize(stream); });
}

Result<Event> LoraBackend::create_event() noexcept {
  return guarded([&] { return do_create_event(); });
}

void LoraBackend::destroy_event(Event event) noexcept {
  if (event.handle != nullptr) do_destroy_event(event);
}

Status LoraBackend::record(Event event, Stream stream) noexcept {
  if (event.handle == nullptr) return null_handle("record", "event");
  if (stream.handle == nullptr) return null_handle("record", "stream");
  return guarded([&] { return do_record(event, stream); });
}

Status LoraBackend::wait(Stream stream, Event event) noexcept {
  if (stream.handle == nullptr) return null_handle("wait", "stream");
  if (event.handle == nullptr) return null_handle("wait", "event");
  return guarded([&] { return do_wait(stream, event); });
}

Result<bool> LoraBackend::query(Event event) noexcept {
  if (event.handle == nullptr) return null_handle("query", "event");
  return guarded([&] { return do_query(event); });
}

Status LoraBackend::synchronize(Event event) noexcept {
  if (event.handle == nullptr) return null_handle("synchronize", "event");
  return guarded([&] { return do_synchronize(event); });
}

int LoraBackend::list_strategies(StrategyInfo* out, int capacity) const noexcept {
  try {
    return do_list_strategies(out, capacity);
  } catch (...) {
    return 0;
  }
}

int LoraBackend::do_list_strategies(StrategyInfo*, int) const { return 0; }

Result<Choice> LoraBackend::do_choose(const Problem& problem) const {
  const Result<Strategy> strategy = do_supports(problem);
  if (!strategy.ok()) return strategy.status();
  return Choice{*strategy, problem.options.configuration, 0, 0};
}

namespace {

Status no_such_operation(const LoraBackend& backend, Op op) {
  return Status::format(StatusCode::unsupported, "%s: the %s backend does not have this operation",
                        to_string(op), backend.name());
}

}  // namespace

Status LoraBackend::do_group_tokens(const GroupTokensArgs&, const LoraAddressing&, void*, Stream) {
  return no_such_operation(*this, Op::group_tokens);
}
Status LoraBackend::do_shrink(const ShrinkArgs&, const Workspace&, Stream) {
  return no_such_operation(*this, Op::shrink);
}
Status LoraBackend::do_expand(const ExpandArgs&, const Workspace&, Stream) {
  return no_such_operation(*this, Op::expand);
}
Status LoraBackend::do_apply_linear(const ApplyLinearArgs&, const Workspace&, Stream) {
  return no_such_operation(*this, Op::apply_linear);
}
Status LoraBackend::do_gather_shrink(const GatherShrinkArgs&, const Workspace&, Stream) {
  return no_such_operation(*this, Op::gather_shrink);
}
Status LoraBackend::do_apply_embedding(const ApplyEmbeddingArgs&, const Workspace&, Stream) {
  return no_such_operation(*this, Op::apply_embedding);
}
Status LoraBackend::do_shrink_experts(const ShrinkExpertsArgs&, const Workspace&, Stream) {
  return no_such_operation(*this, Op::shrink_experts);
}
Status LoraBackend::do_expand_experts(const ExpandExpertsArgs&, const Workspace&, Stream) {
  return no_such_operation(*this, Op::expand_experts);
}
Status LoraBackend::do_apply_experts(const ApplyExpertsArgs&, const Workspace&, Stream) {
  return no_such_operation(*this, Op::apply_experts);
}
Status LoraBackend::do_forward(const ForwardArgs&, const Workspace&, Stream) {
  return no_such_operation(*this, Op::forward);
}
Status LoraBackend::do_backward(const BackwardArgs&, const Workspace&, Stream) {
  return no_such_operation(*this, Op::backward);
}
Status LoraBackend::do_forward_embedding(const ForwardEmbeddingArgs&, const Workspace&, Stream) {
  return no_such_operation(*this, Op::forward_embedding);
}
Status LoraBackend::do_backward_embedding(const BackwardEmbeddingArgs&, const Workspace&, Stream) {
  return no_such_operation(*this, Op::backward_embedding);
}
Status LoraBackend::do_backward_experts(const BackwardExpertsArgs&, const Workspace&, Stream) {
  return no_such_operation(*this, Op::backward_experts);
}

RANKFOLD_NAMESPACE_END
