#include "directory.hpp"

#include <utility>

namespace swap_under_load {

Directory::Directory(std::int32_t num_adapters)
    : of_adapter_(static_cast<std::size_t>(num_adapters)) {}

std::optional<Resident> Directory::put(const Resident& resident) {
  const std::lock_guard lock(mutex_);
  return std::exchange(of_adapter_.at(resident.revision->adapter()), resident);
}

void Directory::remove(const Resident& resident) {
  const std::lock_guard lock(mutex_);
  std::optional<Resident>& entry = of_adapter_.at(resident.revision->adapter());
  if (entry && entry->handle == resident.handle) entry.reset();
}

std::optional<Resident> Directory::pick(std::uint32_t random) const {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < of_adapter_.size(); ++i) {
    const auto& entry = of_adapter_[(random + i) % of_adapter_.size()];
    if (entry) return entry;
  }
  return std::nullopt;
}

}  // namespace swap_under_load
