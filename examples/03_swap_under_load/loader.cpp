#include "loader.hpp"

#include <chrono>
#include <thread>
#include <utility>

namespace swap_under_load {

using rankfold::StatusCode;
using rankfold::throw_if_error;

rankfold::OwnedStream make_stream(rankfold::LoraBackend& backend) {
  const bool is_cpu = backend.device().type == rankfold::DeviceType::cpu;
  return rankfold::OwnedStream::create(
             backend, is_cpu ? rankfold::StreamMode::worker : rankfold::StreamMode::automatic)
      .value();
}

Loader::Loader(rankfold::LoraBackend& backend, rankfold::AdapterPool& pool, rankfold::Stream steps,
               Directory& directory, std::int32_t num_adapters, std::uint32_t seed)
    : pool_(pool),
      steps_(steps),
      directory_(directory),
      num_adapters_(num_adapters),
      random_(seed),
      upload_(make_stream(backend)),
      next_key_(seed * 1000003u) {}

LoadCounts Loader::counts() const {
  const rankfold::PoolStats stats = pool_.stats();
  return {.loads = static_cast<std::int64_t>(stats.num_loads),
          .evictions = static_cast<std::int64_t>(stats.num_evictions),
          .unloads = num_unloads_,
          .cancelled = num_cancelled_,
          .no_room = num_no_room_};
}

void Loader::fill() {
  while (pool_.stats().num_evictions == 0) load_one(false);
}

void Loader::run(const std::atomic<bool>& stop) {
  while (!stop) {
    // All that could go is pinned: a scheduler would try again after the next step.
    if (load_one(true) == Outcome::no_room)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Loader::Outcome Loader::load_one(bool may_cancel) {
  const auto adapter = static_cast<std::int32_t>(random_() % num_adapters_);
  const auto revision = std::make_shared<Revision>(adapter, next_key_++);

  // The upload runs beside the steps. Nothing is evicted yet.
  auto pending = pool_.prepare(revision->bindings(), upload_);
  if (!pending && pending.status().code() == StatusCode::no_room) {
    ++num_no_room_;
    return Outcome::no_room;
  }
  throw_if_error(pending.status());
  revision->drop_weights();

  // One client in eight has gone meanwhile.
  if (may_cancel && random_() % 8 == 0) {
    pending->cancel();
    ++num_cancelled_;
    return Outcome::cancelled;
  }
  while (!pending->poll().value()) std::this_thread::yield();

  // Between two steps, by one copy. What was there goes when the steps before it have run.
  auto handle = pool_.publish(std::move(*pending), {&steps_, 1});
  if (!handle && handle.status().code() == StatusCode::no_room) {
    ++num_no_room_;
    return Outcome::no_room;
  }
  throw_if_error(handle.status());

  // An older revision of the same adapter is of no use; where requests still use it, it stays until
  // it is evicted.
  if (const auto older = directory_.put({*handle, revision})) {
    if (pool_.unload(older->handle, {&steps_, 1}).ok()) ++num_unloads_;
  }
  return Outcome::published;
}

}  // namespace swap_under_load
