// What `rankfold list` shows: every backend, best first, and why auto passes over the better ones.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "registry_state.hpp"

RANKFOLD_NAMESPACE_BEGIN

namespace {

void set_name(BackendListing* line, const char* name) noexcept {
  std::snprintf(line->name, sizeof(line->name), "%s", name);
}

}  // namespace

int Registry::list(BackendListing* out, int capacity) noexcept {
  const std::lock_guard lock(state_->mutex);
  const BackendDescriptor* const taken = state_->automatic();
  int count = 0;
  BackendListing* line = nullptr;
  const auto next = [&]() -> bool {
    if (out == nullptr || count >= capacity) {
      ++count;
      return false;
    }
    line = &out[count++];
    *line = {};
    return true;
  };

  bool better = taken != nullptr;  // than what auto takes
  for (const BackendDescriptor& backend : state_->backends) {
    if (&backend == taken) better = false;
    if (!next()) continue;
    set_name(line, backend.name);
    line->built = 1;
    line->taken_by_auto = &backend == taken ? 1 : 0;
    State::describe(backend, &line->description);
    if (better && line->description.usable != 0) {
      std::snprintf(line->description.reason, sizeof(line->description.reason),
                    "auto takes accelerators and reference alone; name %s to use it", backend.name);
    }
  }
  for (const MissingBackend& missing : state_->missing) {
    if (state_->find(missing.name) != nullptr) continue;  // a host added its own
    if (!next()) continue;
    set_name(line, missing.name);
    std::snprintf(line->description.reason, sizeof(line->description.reason),
                  "not in this build%s%s%s%s", missing.reason[0] ? ": " : "", missing.reason,
                  missing.option[0] ? "; configure with -D" : "", missing.option);
  }
  return count;
}

RANKFOLD_NAMESPACE_END
