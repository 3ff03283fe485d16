// AdapterPool and Pending: the public skin over PoolState.
#include "rankfold/pool.hpp"

#include <algorithm>

#include "guard.hpp"
#include "pool/handles.hpp"

RANKFOLD_NAMESPACE_BEGIN

using detail::guarded;
using detail::UploadWait;

namespace {

Status moved_from(const char* function) noexcept {
  return Status::format(StatusCode::invalid_argument,
                        "%s: the object is empty; it should be one that the pool made", function);
}

}  // namespace

Pending::Pending(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
Pending::Pending(Pending&&) noexcept = default;
Pending& Pending::operator=(Pending&&) noexcept = default;
Pending::~Pending() = default;

Result<bool> Pending::poll() noexcept {
  if (state_ == nullptr) return moved_from("poll");
  return state_->pool->poll(state_->load);
}

void Pending::cancel() noexcept {
  if (state_ != nullptr) state_->pool->cancel(state_->load);
}

Result<AdapterPool> AdapterPool::create(LoraBackend& backend, std::span<const TargetSpec> targets,
                                        const PoolOptions& options) {
  return guarded([&]() -> Result<AdapterPool> {
    auto layout = detail::make_layout(targets, options);
    if (!layout.ok()) return layout.status();
    auto state = std::make_shared<State>(backend, std::move(*layout), options);
    if (Status status = state->create(); !status.ok()) return status;
    return AdapterPool(std::move(state));
  });
}

AdapterPool::AdapterPool(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
AdapterPool::AdapterPool(AdapterPool&&) noexcept = default;
AdapterPool& AdapterPool::operator=(AdapterPool&& other) noexcept {
  AdapterPool moved(std::move(other));
  state_.swap(moved.state_);
  return *this;
}
AdapterPool::~AdapterPool() {
  // Loads that outlive the pool keep the state, but nothing of the device.
  if (state_ != nullptr) state_->close();
}

Result<AdapterTableView> AdapterPool::table(std::int32_t target) const noexcept {
  if (state_ == nullptr) return moved_from("table");
  const auto& targets = state_->layout().targets;
  if (target < 0 || static_cast<std::size_t>(target) >= targets.size()) {
    return Status::format(StatusCode::invalid_argument, "table: target is %d; it should be 0 to %d",
                          target, static_cast<std::int32_t>(targets.size()) - 1);
  }
  return state_->table(targets[static_cast<std::size_t>(target)]);
}

Result<AdapterTableView> AdapterPool::table(std::string_view key) const noexcept {
  if (state_ == nullptr) return moved_from("table");
  for (const auto& target : state_->layout().targets) {
    if (target.key == key) return state_->table(target);
  }
  return Status::format(StatusCode::invalid_argument,
                        "table: key is '%.*s'; it should be the key of one of the pool's %zu "
                        "targets",
                        static_cast<int>(std::min<std::size_t>(key.size(), 256)), key.data(),
                        state_->layout().targets.size());
}

Result<Pending> AdapterPool::prepare(std::span<const AdapterBinding> bindings,
                                     Stream upload_stream) {
  if (state_ == nullptr) return moved_from("prepare");
  return guarded([&]() -> Result<Pending> {
    auto pending = std::make_shared<Pending::State>(state_);
    if (Status status = state_->prepare(bindings, upload_stream, pending->load); !status.ok()) {
      return status;
    }
    return Pending(std::move(pending));
  });
}

Result<AdapterHandle> AdapterPool::publish_with(Pending& pending,
                                                std::span<const Stream> step_streams,
                                                bool wait_for_upload) {
  if (state_ == nullptr || pending.state_ == nullptr) return moved_from("publish");
  if (pending.state_->pool != state_) {
    return Status(StatusCode::invalid_argument,
                  "publish: pending belongs to another pool; it should be of this one");
  }
  return guarded([&]() -> Result<AdapterHandle> {
    auto handle = state_->publish(pending.state_->load, step_streams,
                                  wait_for_upload ? UploadWait::on_host : UploadWait::on_device);
    if (handle.ok()) pending.state_.reset();
    return handle;
  });
}

Result<AdapterHandle> AdapterPool::publish(Pending&& pending,
                                           std::span<const Stream> step_streams) {
  return publish_with(pending, step_streams, false);
}

Result<AdapterHandle> AdapterPool::load(std::span<const AdapterBinding> bindings,
                                        Stream upload_stream,
                                        std::span<const Stream> step_streams) {
  auto pending = prepare(bindings, upload_stream);
  if (!pending.ok()) return pending.status();
  return publish_with(*pending, step_streams, true);
}

Status AdapterPool::pin(AdapterHandle handle) noexcept {
  return state_ == nullptr ? moved_from("pin") : state_->pin(handle);
}

Status AdapterPool::unpin(AdapterHandle handle) noexcept {
  return state_ == nullptr ? moved_from("unpin") : state_->unpin(handle);
}

Status AdapterPool::unload(AdapterHandle handle, std::span<const Stream> step_streams) {
  if (state_ == nullptr) return moved_from("unload");
  return guarded([&] { return state_->unload(handle, step_streams); });
}

bool AdapterPool::resident(AdapterHandle handle) const noexcept {
  return state_ != nullptr && state_->resident(handle);
}

PoolStats AdapterPool::stats() const noexcept {
  return state_ == nullptr ? PoolStats{} : state_->stats();
}

RANKFOLD_NAMESPACE_END
