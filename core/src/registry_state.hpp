// What the registry holds. Only registry*.cpp include this.
#pragma once

#include <atomic>
#include <mutex>
#include <string_view>
#include <vector>

#include "rankfold/registry.hpp"
#include "registry_specification.hpp"

RANKFOLD_NAMESPACE_BEGIN

struct Registry::State {
  struct Instance {
    const char* name;
    std::int32_t device;
    LoraBackend* backend;
  };

  /// Guards everything below, and a backend's describe and create, which must not call back.
  std::mutex mutex;
  std::vector<BackendDescriptor> backends;  ///< by falling priority, then in order of adding
  std::vector<MissingBackend> missing;
  std::vector<Instance> instances;  ///< never destroyed
  /// The process's backend once it is resolved; read without the mutex.
  std::atomic<LoraBackend*> resolved{nullptr};
  Instance resolved_instance{};
  detail::BackendWish resolved_by{};

  const BackendDescriptor* find(std::string_view name) const noexcept;
  const MissingBackend* find_missing(std::string_view name) const noexcept;

  /// What the backend says of this machine; one that throws is not usable.
  static void describe(const BackendDescriptor& backend, BackendDescription* description) noexcept;
  /// The backend that auto takes here, or null: the best usable accelerator, else reference, else
  /// (no reference is registered) the best usable one.
  const BackendDescriptor* automatic() const noexcept;

  /// The descriptor that the wish means, or the error that says why not.
  Status select(const detail::BackendWish& wish, const BackendDescriptor** backend) const;
  /// The shared instance of (backend, device), made when it is the first.
  Status obtain(const detail::BackendWish& wish, const BackendDescriptor& backend,
                Instance* instance);
  /// select() and obtain().
  Status open(const detail::BackendWish& wish, Instance* instance);
};

RANKFOLD_NAMESPACE_END
