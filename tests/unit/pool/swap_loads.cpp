#include "swap_loads.hpp"

#include <algorithm>
#include <thread>

namespace rankfold::testing {

namespace {

constexpr std::int64_t kCheckpoints = 10;
// Many more rounds than publishes mean that the pool has no room left that it should have.
constexpr std::int64_t kMostRounds = 20;

}  // namespace

SwapLoads::SwapLoads(AdapterPool& pool, LoraBackend& backend, std::span<const Stream> uploads,
                     std::span<const Stream> steps, SwapBoard& board, SwapFailures& failures,
                     unsigned seed, std::int64_t (*heap_bytes)() noexcept)
    : pool_(pool),
      backend_(backend),
      uploads_(uploads),
      steps_(steps),
      board_(board),
      failures_(failures),
      random_(seed),
      heap_bytes_(heap_bytes) {}

void SwapLoads::check(bool good, const char* call, const std::string& what) {
  if (good) return;
  failures_.add(std::string(call) + " after " + std::to_string(counts_.published) +
                " publishes: " + what);
}

void SwapLoads::run(std::int64_t num_publishes) {
  const std::int64_t every = std::max<std::int64_t>(1, num_publishes / kCheckpoints);
  for (std::int64_t i = 0; counts_.published < num_publishes; ++i) {
    if (i == kMostRounds * num_publishes) {
      check(false, "run", "almost every load is refused");
      break;
    }
    if (counts_.published >= every * (counts_.checkpoints + 1)) checkpoint();
    round();
  }
  checkpoint();
  board_.pause();
}

void SwapLoads::round() {
  SwapAdapter adapter(next_id_++);
  switch (random_() % 32) {
    case 0:
      return refuse_while_pinned(adapter);
    case 1:
      return refuse_rank();
    case 2:
    case 3:
    case 4:
      return cancel(adapter);
    case 5:
    case 6:
      return unload_one();
    case 7:
    case 8:
    case 9:
      return prepare_two(adapter);
    case 10:
    case 11:
    case 12:
    case 13:
    case 14:
    case 15:
      return load(adapter);
    default:
      return prepare_and_publish(adapter);
  }
}

void SwapLoads::load(SwapAdapter& adapter) {
  settle("load", pool_.load(adapter.view(), upload(), steps_), adapter.version());
}

void SwapLoads::prepare_and_publish(SwapAdapter& adapter) {
  auto pending = pool_.prepare(adapter.view(), upload());
  adapter.scramble();
  if (!pending.ok()) return unchanged("prepare", pending.status());
  if (random_() % 2 == 0) {
    // Otherwise the step streams wait for the upload.
    for (;;) {
      const Result<bool> arrived = pending->poll();
      check(arrived.ok(), "poll", arrived.status().message());
      if (!arrived.ok() || *arrived) break;
      std::this_thread::yield();
    }
  }
  const auto handle = pool_.publish(std::move(*pending), steps_);
  settle("publish", handle, adapter.version());
}

// Published in the other order.
void SwapLoads::prepare_two(SwapAdapter& first) {
  SwapAdapter second(next_id_++);
  auto pending = pool_.prepare(first.view(), upload());
  if (!pending.ok()) return unchanged("prepare", pending.status());
  auto later = pool_.prepare(second.view(), upload());
  first.scramble();
  second.scramble();
  if (later.ok()) {
    settle("publish", pool_.publish(std::move(*later), steps_), second.version());
  } else {
    unchanged("prepare", later.status());
  }
  settle("publish", pool_.publish(std::move(*pending), steps_), first.version());
}

void SwapLoads::cancel(SwapAdapter& adapter) {
  auto pending = pool_.prepare(adapter.view(), upload());
  if (!pending.ok()) return unchanged("prepare", pending.status());
  if (random_() % 2 == 0) {
    pending->cancel();
    const auto handle = pool_.publish(std::move(*pending), steps_);
    check(!handle.ok() && handle.status().code() == StatusCode::cancelled, "publish",
          "a cancelled load was published");
  } else {
    *pending = Pending();  // destroyed unpublished
  }
  ++counts_.cancelled;
  compare("cancel");
}

void SwapLoads::unload_one() {
  if (residents_.empty()) return;
  const auto it = residents_.begin() + static_cast<std::ptrdiff_t>(random_() % residents_.size());
  const SwapVersionPtr version = *it;
  const Status status = pool_.unload(version->handle, steps_);
  if (!status.ok()) return unchanged("unload", status);
  check(!is_resident(version), "unload", "the adapter is still resident");
  check(!pool_.pin(version->handle).ok(), "unload", "the handle can still be pinned");
  residents_.erase(it);
  ++counts_.unloaded;
  compare("unload");
}

void SwapLoads::refuse_rank() {
  const SwapAdapter adapter(next_id_++, kSwapMaxRank + 1);
  const auto pending = pool_.prepare(adapter.view(), upload());
  check(!pending.ok() && pending.status().code() == StatusCode::invalid_argument, "prepare",
        "a rank above max_rank was accepted");
  ++counts_.invalid;
  compare("prepare");
}

// Everything is pinned between prepare and publish: no_room, and the same load goes through later.
void SwapLoads::refuse_while_pinned(SwapAdapter& adapter) {
  auto pending = pool_.prepare(adapter.view(), upload());
  if (!pending.ok()) return unchanged("prepare", pending.status());
  const std::vector<SwapVersionPtr> pinned = residents_;
  for (const auto& version : pinned) {
    check(pool_.pin(version->handle).ok(), "pin", "a resident adapter was refused");
  }
  auto handle = pool_.publish(std::move(*pending), steps_);
  for (const auto& version : pinned) {
    check(pool_.unpin(version->handle).ok(), "unpin", "a pinned adapter was refused");
  }
  const bool was_refused = !handle.ok();
  if (was_refused) {
    unchanged("publish", handle.status());
    handle = pool_.publish(std::move(*pending), steps_);
    if (handle.ok()) ++counts_.republished;
  }
  settle("publish", handle, adapter.version());
}

void SwapLoads::unchanged(const char* call, const Status& status) {
  check(status.code() == StatusCode::no_room, call, status.message());
  ++counts_.no_room;
  compare(call);
}

void SwapLoads::settle(const char* call, const Result<AdapterHandle>& handle,
                       const SwapVersionPtr& version) {
  if (!handle.ok()) return unchanged(call, handle.status());
  ++counts_.published;
  check(handle->version > last_version_, call, "a version was used again");
  last_version_ = handle->version;
  version->handle = *handle;
  const auto gone = [this](const SwapVersionPtr& other) { return !is_resident(other); };
  const auto first_gone = std::remove_if(residents_.begin(), residents_.end(), gone);
  counts_.evicted += residents_.end() - first_gone;
  if (residents_.end() - first_gone > 1) ++counts_.made_room;
  residents_.erase(first_gone, residents_.end());
  for (const auto& other : residents_) {
    check(other->handle.slot != handle->slot, call, "two adapters have the same slot");
  }
  residents_.push_back(version);
  compare(call);
  const bool pinned = pool_.pin(*handle).ok();
  check(pinned, call, "the new adapter cannot be pinned");
  if (pinned) board_.hand_over(version);
}

void SwapLoads::compare(const char* call) {
  std::uint64_t weight_bytes = 0;
  for (const auto& version : residents_) {
    weight_bytes += version->weight_bytes;
    check(is_resident(version), call, "an adapter is gone");
  }
  const PoolStats stats = pool_.stats();
  const auto same = [&](const char* what, std::uint64_t is, std::uint64_t should) {
    check(is == should, call,
          std::string(what) + " is " + std::to_string(is) + ", not " + std::to_string(should));
  };
  same("num_resident", static_cast<std::uint64_t>(stats.num_resident), residents_.size());
  same("weight_bytes", stats.weight_bytes, weight_bytes);
  same("num_loads", stats.num_loads, static_cast<std::uint64_t>(counts_.published));
  same("num_evictions", stats.num_evictions, static_cast<std::uint64_t>(counts_.evicted));
}

// With every step run, the arena holds the residents alone; without these, nothing.
void SwapLoads::checkpoint() {
  board_.pause();
  board_.forget();
  for (const Stream stream : steps_) {
    check(backend_.synchronize(stream).ok(), "checkpoint", "a step stream failed");
  }
  for (const Stream stream : uploads_) {
    check(backend_.synchronize(stream).ok(), "checkpoint", "an upload stream failed");
  }
  const auto compare_arena = [this] {
    std::uint64_t bytes = 0;
    for (const auto& version : residents_) bytes += version->arena_bytes;
    const PoolStats stats = pool_.stats();
    check(stats.arena_in_use == bytes, "checkpoint",
          "arena_in_use is " + std::to_string(stats.arena_in_use) + ", the residents take " +
              std::to_string(bytes));
    check(stats.num_pinned == 0, "checkpoint",
          std::to_string(stats.num_pinned) + " slots are pinned");
  };
  compare_arena();
  for (const auto& version : residents_) {
    check(pool_.unload(version->handle, steps_).ok(), "checkpoint", "unload was refused");
  }
  residents_.clear();
  for (const Stream stream : steps_) static_cast<void>(backend_.synchronize(stream));
  compare_arena();
  compare("checkpoint");
  if (heap_bytes_ != nullptr) {
    const std::int64_t bytes = heap_bytes_();
    if (counts_.checkpoints == 0) first_heap_bytes_ = bytes;
    counts_.heap_growth = bytes - first_heap_bytes_;
  }
  ++counts_.checkpoints;
  board_.resume();
}

}  // namespace rankfold::testing
