#include "serving/adapter_store.hpp"

#include <algorithm>
#include <stdexcept>

namespace serving {
namespace {

using rankfold::throw_if_error;

// A status with the adapter's name in front of its text.
[[noreturn]] void fail(const std::string& name, const rankfold::Status& status) {
  throw rankfold::Error(
      rankfold::Status::format(status.code(), "adapter %s: %s", name.c_str(), status.message()));
}

rankfold::Adapter load(const AdapterSource& source, std::span<const rankfold::TargetSpec> targets) {
  auto adapter = rankfold::load_adapter(source.folder.string(), targets);
  if (!adapter) fail(source.name, adapter.status());
  return std::move(adapter).value();
}

// What one adapter takes of a float32 arena: its real ranks, each matrix rounded up to 16 bytes.
std::uint64_t arena_bytes(const rankfold::Adapter& adapter) {
  constexpr std::int64_t kUnit = 16;
  const auto round_up = [](std::int64_t bytes) { return (bytes + kUnit - 1) / kUnit * kUnit; };
  constexpr std::int64_t kFloat = sizeof(float);
  std::int64_t bytes = 0;
  for (const rankfold::AdapterBinding& binding : adapter.bindings()) {
    bytes += round_up(binding.a.sizes[0] * binding.a.sizes[1] * kFloat);
    bytes += round_up(binding.b.sizes[0] * binding.b.sizes[1] * kFloat);
    if (binding.bias.data != nullptr) bytes += round_up(binding.bias.sizes[0] * kFloat);
  }
  return static_cast<std::uint64_t>(bytes);
}

std::int32_t largest_rank(const rankfold::Adapter& adapter) {
  std::int32_t rank = 1;
  for (const rankfold::AdapterBinding& binding : adapter.bindings())
    rank = std::max(rank, binding.rank);
  return rank;
}

}  // namespace

AdapterStore::AdapterStore(rankfold::LoraBackend& backend,
                           std::span<const rankfold::TargetSpec> targets,
                           const std::vector<AdapterSource>& sources, std::int32_t num_slots)
    : AdapterStore(
          backend, targets,
          [&] {
            std::vector<Entry> entries;
            for (const AdapterSource& source : sources)
              entries.push_back({source.name, load(source, targets), {}, {}});
            return entries;
          }(),
          num_slots) {}

AdapterStore::AdapterStore(rankfold::LoraBackend& backend,
                           std::span<const rankfold::TargetSpec> targets,
                           std::vector<Entry> entries, std::int32_t num_slots)
    : num_targets_(targets.size()),
      entries_(std::move(entries)),
      upload_stream_(rankfold::OwnedStream::create(backend).value()),
      pool_([&] {
        std::int32_t rank = 1;
        std::uint64_t bytes = 0;
        for (const Entry& entry : entries_) {
          rank = std::max(rank, largest_rank(entry.adapter));
          bytes = std::max(bytes, arena_bytes(entry.adapter));
        }
        const std::uint64_t most = std::min(entries_.size(), static_cast<std::size_t>(num_slots));
        const rankfold::PoolOptions options{
            .num_slots = num_slots,
            .max_rank = rank,
            // One more than can be resident: while an adapter arrives, the memory of the one that
            // it replaces may still be read by the step before.
            .arena_bytes = bytes * (most + 1),
            .a_dtype = rankfold::DType::f32,
            .b_dtype = rankfold::DType::f32,
            .x_dtype = rankfold::DType::f32,
            .y_dtype = rankfold::DType::f32,
        };
        return rankfold::AdapterPool::create(backend, targets, options).value();
      }()) {}

std::vector<rankfold::AdapterTableView> AdapterStore::tables() const {
  std::vector<rankfold::AdapterTableView> tables;
  for (std::size_t i = 0; i < num_targets_; ++i)
    tables.push_back(pool_.table(static_cast<std::int32_t>(i)).value());
  return tables;
}

std::optional<std::int32_t> AdapterStore::pin(const std::string& name, rankfold::Stream step_stream,
                                              Upload upload) {
  Entry& entry = find(name);
  if (!entry.handle) {
    if (!entry.pending && !send(entry)) return std::nullopt;
    if (upload == Upload::go_on && !entry.pending->poll().value()) return std::nullopt;
    if (!publish(entry, step_stream)) return std::nullopt;
  }
  throw_if_error(pool_.pin(*entry.handle));
  pinned_.push_back(*entry.handle);
  return entry.handle->slot;
}

void AdapterStore::unpin_all() {
  for (const rankfold::AdapterHandle handle : pinned_) throw_if_error(pool_.unpin(handle));
  pinned_.clear();
}

AdapterStore::Entry& AdapterStore::find(const std::string& name) {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.name == name; });
  if (found == entries_.end()) throw std::invalid_argument("no adapter of the name " + name);
  return *found;
}

// Enqueues the upload; nothing resident is touched yet. prepare() may wait for the device, never
// for a step: an engine with large adapters calls it from a thread of its own.
// false: no room even for the bytes; the pool is as it was.
bool AdapterStore::send(Entry& entry) {
  rankfold::Result<rankfold::Pending> pending = pool_.prepare(entry.adapter, upload_stream_);
  if (!pending && pending.status().code() == rankfold::StatusCode::no_room) return false;
  if (!pending) fail(entry.name, pending.status());
  entry.pending = std::move(pending).value();
  return true;
}

// Gives the adapter a slot, from the next operation on the step stream on.
// false: running requests have pinned every slot; the upload is kept and asks again next step.
bool AdapterStore::publish(Entry& entry, rankfold::Stream step_stream) {
  rankfold::Result<rankfold::AdapterHandle> handle =
      pool_.publish(std::move(*entry.pending), std::span(&step_stream, 1));
  if (!handle && handle.status().code() == rankfold::StatusCode::no_room) return false;
  if (!handle) fail(entry.name, handle.status());
  entry.pending.reset();
  entry.handle = *handle;
  arrivals_.push_back({entry.name, handle->slot, forget_evicted()});
  return true;
}

// The pool chooses whom to evict; a version that is no longer resident tells whom.
std::vector<std::string> AdapterStore::forget_evicted() {
  std::vector<std::string> evicted;
  for (Entry& entry : entries_) {
    if (!entry.handle || pool_.resident(*entry.handle)) continue;
    entry.handle.reset();
    evicted.push_back(entry.name);
  }
  return evicted;
}

}  // namespace serving
