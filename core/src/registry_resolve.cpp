// From a wish to a backend: one of the four errors, or the shared instance.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "guard.hpp"
#include "registry_state.hpp"

RANKFOLD_NAMESPACE_BEGIN

using detail::BackendWish;

namespace {

constexpr const char* kReference = "reference";

// The way out that is there whatever was asked for.
const char* cure(const BackendWish& wish) noexcept {
  return wish.source == detail::kBackendVariable ? "unset the variable to take the best one here"
                                                 : "\"auto\" takes the best one here";
}

Status not_compiled(const BackendWish& wish, const MissingBackend& missing) noexcept {
  const bool has_option = missing.option[0] != '\0';
  return Status::format(
      StatusCode::not_compiled, "%s is \"%s\": the %s backend is not in this build%s%s; %s%s%s%s",
      wish.source, wish.value, missing.name, missing.reason[0] ? ": " : "", missing.reason,
      has_option ? "configure with -D" : "", missing.option, has_option ? ", or " : "", cure(wish));
}

Status unknown(const BackendWish& wish, const std::vector<BackendDescriptor>& backends,
               const std::vector<MissingBackend>& missing) {
  std::string built;
  std::string left_out;
  std::string near;
  int nearest = 3;  // more edits than this are another word
  const auto consider = [&](const char* name) {
    const int edits = detail::edit_distance(wish.name, name);
    if (edits < nearest) {
      nearest = edits;
      near = name;
    }
  };
  for (const auto& backend : backends) {
    if (!built.empty()) built += ", ";
    built += backend.name;
    if (std::strcmp(backend.name, kReference) == 0) built += " (alias cpu)";
    consider(backend.name);
  }
  for (const auto& backend : missing) {
    left_out += left_out.empty() ? "; known but not in this build: " : ", ";
    left_out += backend.name;
    consider(backend.name);
  }
  if (built.empty()) built = "none";
  if (!near.empty()) near = "; did you mean " + near + "?";
  return Status::format(StatusCode::unknown_backend,
                        "%s is \"%s\": there is no backend \"%s\"; this build has: %s%s%s; name "
                        "one of these, or %s",
                        wish.source, wish.value, wish.name, built.c_str(), left_out.c_str(),
                        near.c_str(), cure(wish));
}

Status unusable(const BackendWish& wish, const char* name, const char* reason) noexcept {
  return Status::format(StatusCode::unavailable,
                        "%s is \"%s\": the %s backend is in this build, but cannot be used here: "
                        "%s; or %s",
                        wish.source, wish.value, name, reason[0] ? reason : "it gives no reason",
                        cure(wish));
}

Status bad_index(const BackendWish& wish, const BackendDescriptor& backend,
                 std::int32_t num_devices) noexcept {
  char valid[48];
  if (num_devices == 1) {
    std::snprintf(valid, sizeof(valid), "1 device here, index 0");
  } else {
    std::snprintf(valid, sizeof(valid), "%d devices here, indices 0 to %d", num_devices,
                  num_devices - 1);
  }
  return Status::format(StatusCode::unavailable,
                        "%s is \"%s\": there is no device %d; the %s backend has %s: name one of "
                        "these, or %s",
                        wish.source, wish.value, wish.device, backend.name, valid, cure(wish));
}

}  // namespace

const BackendDescriptor* Registry::State::find(std::string_view name) const noexcept {
  const auto found = std::find_if(backends.begin(), backends.end(),
                                  [&](const auto& backend) { return name == backend.name; });
  return found != backends.end() ? &*found : nullptr;
}

const MissingBackend* Registry::State::find_missing(std::string_view name) const noexcept {
  const auto found = std::find_if(missing.begin(), missing.end(),
                                  [&](const auto& backend) { return name == backend.name; });
  return found != missing.end() ? &*found : nullptr;
}

void Registry::State::describe(const BackendDescriptor& backend,
                               BackendDescription* description) noexcept {
  *description = {};
  try {
    backend.describe(description);
  } catch (...) {
    const Status status = detail::status_of_current_exception();
    *description = {};
    std::snprintf(description->reason, sizeof(description->reason),
                  "asking it threw an exception: %.400s", status.message());
  }
}

const BackendDescriptor* Registry::State::automatic() const noexcept {
  const BackendDescriptor* best_usable = nullptr;
  const BackendDescriptor* reference = nullptr;
  for (const BackendDescriptor& backend : backends) {
    BackendDescription description;
    describe(backend, &description);
    if (description.usable == 0) continue;
    if (description.is_accelerator != 0) return &backend;
    if (std::strcmp(backend.name, kReference) == 0) reference = &backend;
    if (best_usable == nullptr) best_usable = &backend;
  }
  return reference != nullptr ? reference : best_usable;
}

Status Registry::State::select(const BackendWish& wish, const BackendDescriptor** backend) const {
  if (wish.automatic()) {
    *backend = automatic();
    if (*backend != nullptr) return {};
    return Status::format(StatusCode::unavailable,
                          "%s is \"%s\", and none of the %zu backends of this process can be used "
                          "here; link rankfold::rankfold for the reference backend, which can "
                          "always be used (rankfold list says why the others cannot)",
                          wish.source, wish.value, backends.size());
  }
  *backend = find(wish.name);
  if (*backend == nullptr) {
    const MissingBackend* const left_out = find_missing(wish.name);
    return left_out != nullptr ? not_compiled(wish, *left_out) : unknown(wish, backends, missing);
  }
  BackendDescription description;
  describe(**backend, &description);
  if (description.usable == 0) return unusable(wish, (*backend)->name, description.reason);
  if (wish.device >= description.num_devices) {
    return bad_index(wish, **backend, description.num_devices);
  }
  return {};
}

Status Registry::State::obtain(const BackendWish& wish, const BackendDescriptor& backend,
                               Instance* instance) {
  for (const Instance& present : instances) {
    if (std::strcmp(present.name, backend.name) == 0 && present.device == wish.device) {
      *instance = present;
      return {};
    }
  }
  instances.reserve(instances.size() + 1);  // afterwards nothing can lose what create made
  LoraBackend* made = nullptr;
  const Status status =
      detail::guarded([&]() -> Status { return backend.create(wish.device, &made); });
  if (!status.ok()) {
    return Status::format(status.code(), "%s is \"%s\": %s:%d could not be opened: %s", wish.source,
                          wish.value, backend.name, wish.device, status.message());
  }
  if (made == nullptr) {
    return Status::format(StatusCode::internal,
                          "%s is \"%s\": create of the %s backend returned ok and no backend",
                          wish.source, wish.value, backend.name);
  }
  instances.push_back({backend.name, wish.device, made});
  *instance = instances.back();
  return {};
}

Status Registry::State::open(const BackendWish& wish, Instance* instance) {
  const BackendDescriptor* backend = nullptr;
  if (Status status = select(wish, &backend); !status.ok()) return status;
  return obtain(wish, *backend, instance);
}

RANKFOLD_NAMESPACE_END
