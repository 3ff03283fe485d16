// The registry's public functions. How a wish is resolved: registry_resolve.cpp.
#include "rankfold/registry.hpp"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "guard.hpp"
#include "registry_state.hpp"

RANKFOLD_NAMESPACE_BEGIN

using detail::BackendWish;
using detail::guarded;

namespace {

constexpr const char* kByCode = "the specification";

const char* text_or_null(const char* text) noexcept { return text != nullptr ? text : "(null)"; }

Status check_name(const char* function, const char* name) noexcept {
  if (name == nullptr || !detail::is_backend_name(name)) {
    return Status::format(
        StatusCode::invalid_argument,
        "%s: name is \"%s\"; it should match [a-z][a-z0-9_]* and have at most %zu "
        "characters",
        function, text_or_null(name), detail::kMaxBackendName);
  }
  const std::string_view view = name;
  if (view == "auto" || view == "cpu") {
    return Status::format(StatusCode::invalid_argument,
                          "%s: name is \"%s\", which RANKFOLD_BACKEND reserves; it should be "
                          "another one",
                          function, name);
  }
  return {};
}

}  // namespace

// In static storage and never destroyed: backends may be used by threads that outlive main(), and
// the process's first use cannot run out of memory.
Registry::Registry() {
  alignas(State) static std::byte storage[sizeof(State)];
  state_ = new (storage) State;
}

Registry& Registry::instance() noexcept {
  alignas(Registry) static std::byte storage[sizeof(Registry)];
  static Registry* const registry = new (storage) Registry;
  return *registry;
}

Status Registry::add(const BackendDescriptor& descriptor) noexcept {
  return guarded([&]() -> Status {
    if (Status status = check_name("Registry::add", descriptor.name); !status.ok()) return status;
    if (descriptor.interface_version != kBackendInterfaceVersion) {
      return Status::format(
          StatusCode::unsupported,
          "Registry::add: the %s backend was built against interface version %d; this library has "
          "version %d: build both from the same release",
          descriptor.name, descriptor.interface_version, kBackendInterfaceVersion);
    }
    if (descriptor.describe == nullptr || descriptor.create == nullptr) {
      return Status::format(StatusCode::invalid_argument,
                            "Registry::add: %s of the %s backend is null; it should be a function",
                            descriptor.describe == nullptr ? "describe" : "create",
                            descriptor.name);
    }
    const std::lock_guard lock(state_->mutex);
    if (state_->find(descriptor.name) != nullptr) {
      return Status::format(StatusCode::invalid_argument,
                            "Registry::add: name is \"%s\", which is taken; it should be another "
                            "one",
                            descriptor.name);
    }
    auto& backends = state_->backends;
    const auto worse = std::find_if(backends.begin(), backends.end(), [&](const auto& other) {
      return other.priority < descriptor.priority;
    });
    backends.insert(worse, descriptor);
    return {};
  });
}

Status Registry::add_missing(const MissingBackend& missing) noexcept {
  return guarded([&]() -> Status {
    if (Status status = check_name("Registry::add_missing", missing.name); !status.ok()) {
      return status;
    }
    if (missing.option == nullptr) {
      return Status::format(StatusCode::invalid_argument,
                            "Registry::add_missing: option of %s is null; it should be the CMake "
                            "option that builds it",
                            missing.name);
    }
    MissingBackend entry = missing;
    if (entry.reason == nullptr) entry.reason = "";
    const std::lock_guard lock(state_->mutex);
    if (state_->find_missing(missing.name) == nullptr) state_->missing.push_back(entry);
    return {};
  });
}

Result<LoraBackend*> Registry::backend() noexcept {
  if (LoraBackend* const resolved = state_->resolved.load(std::memory_order_acquire)) {
    return resolved;
  }
  return guarded([&]() -> Result<LoraBackend*> {
    const std::lock_guard lock(state_->mutex);
    if (LoraBackend* const resolved = state_->resolved.load(std::memory_order_relaxed)) {
      return resolved;
    }
    // A failure is not a resolution: the host may still choose another by code.
    BackendWish wish;
    if (Status status = detail::parse_backend_wish(detail::kBackendVariable,
                                                   std::getenv(detail::kBackendVariable), &wish);
        !status.ok()) {
      return status;
    }
    State::Instance instance{};
    if (Status status = state_->open(wish, &instance); !status.ok()) return status;
    state_->resolved_by = wish;
    state_->resolved_instance = instance;
    state_->resolved.store(instance.backend, std::memory_order_release);
    return instance.backend;
  });
}

Status Registry::choose(const char* specification) noexcept {
  return guarded([&]() -> Status {
    BackendWish wish;
    if (Status status = detail::parse_backend_wish(kByCode, specification, &wish); !status.ok()) {
      return status;
    }
    const std::lock_guard lock(state_->mutex);
    const BackendDescriptor* backend = nullptr;
    if (Status status = state_->select(wish, &backend); !status.ok()) return status;
    State::Instance& current = state_->resolved_instance;
    if (current.backend == nullptr) {
      if (Status status = state_->obtain(wish, *backend, &current); !status.ok()) return status;
      state_->resolved_by = wish;
      state_->resolved.store(current.backend, std::memory_order_release);
      return {};
    }
    if (std::string_view(backend->name) == current.name && wish.device == current.device) return {};
    return Status::format(
        StatusCode::invalid_argument,
        "the specification is \"%s\": this process uses %s:%d already, by %s \"%s\"; choose before "
        "the first use, or ask get() for a further backend",
        wish.value, current.name, current.device, state_->resolved_by.source,
        state_->resolved_by.value);
  });
}

Result<LoraBackend*> Registry::get(const char* specification) noexcept {
  return guarded([&]() -> Result<LoraBackend*> {
    BackendWish wish;
    if (Status status = detail::parse_backend_wish(kByCode, specification, &wish); !status.ok()) {
      return status;
    }
    const std::lock_guard lock(state_->mutex);
    State::Instance instance{};
    if (Status status = state_->open(wish, &instance); !status.ok()) return status;
    return instance.backend;
  });
}

RANKFOLD_NAMESPACE_END
