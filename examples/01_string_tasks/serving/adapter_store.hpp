// Adapters by name: read and bound once, kept in host memory, resident in the pool while in use.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <rankfold/rankfold.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace serving {

struct AdapterSource {
  std::string name;
  std::filesystem::path folder;  ///< adapter_config.json and adapter_model.safetensors
};

/// An adapter has arrived in a slot, perhaps in another's place.
struct Arrival {
  std::string adapter;
  std::int32_t slot;
  std::vector<std::string> evicted;
};

class AdapterStore {
 public:
  /// What a step does while an upload is under way: go on without the adapter, or stand in line
  /// behind the upload (when there is nothing else to do).
  enum class Upload { go_on, wait };

  /// Reads and binds every adapter, then makes a float32 pool of num_slots slots, large enough for
  /// the largest adapters. Throws rankfold::Error naming the adapter.
  AdapterStore(rankfold::LoraBackend& backend, std::span<const rankfold::TargetSpec> targets,
               const std::vector<AdapterSource>& sources, std::int32_t num_slots);

  /// The pool's tables, in the order of the targets.
  std::vector<rankfold::AdapterTableView> tables() const;

  /// Pins the adapter for the step being built and returns its slot. One that is not resident is
  /// sent on its way, in the place of the least recently used that no request of this step pins;
  /// nothing is returned until it has arrived, or when all slots are pinned.
  std::optional<std::int32_t> pin(const std::string& name, rankfold::Stream step_stream,
                                  Upload upload);
  /// The step is enqueued.
  void unpin_all();

  /// Arrivals since the last call.
  std::vector<Arrival> take_arrivals() { return std::exchange(arrivals_, {}); }
  rankfold::PoolStats stats() const { return pool_.stats(); }

 private:
  struct Entry {
    std::string name;
    rankfold::Adapter adapter;
    std::optional<rankfold::Pending> pending;
    std::optional<rankfold::AdapterHandle> handle;
  };
  AdapterStore(rankfold::LoraBackend& backend, std::span<const rankfold::TargetSpec> targets,
               std::vector<Entry> entries, std::int32_t num_slots);

  Entry& find(const std::string& name);
  bool send(Entry& entry);
  bool publish(Entry& entry, rankfold::Stream step_stream);
  std::vector<std::string> forget_evicted();

  std::size_t num_targets_;
  std::vector<Entry> entries_;
  rankfold::OwnedStream upload_stream_;
  rankfold::AdapterPool pool_;
  std::vector<rankfold::AdapterHandle> pinned_;
  std::vector<Arrival> arrivals_;
};

}  // namespace serving
