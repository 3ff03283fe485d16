#include "tuning.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace rankfold::tools {

std::string TuningUse::describe(const Device& device) {
  if (!device.reads) return fmt::format("{} reads none", device.backend);
  return fmt::format("{} {} for {}:{}, {} for others", device.entries,
                     device.entries == 1 ? "entry" : "entries", device.backend, device.index,
                     device.others);
}

TuningTarget tuning_target(const BackendListing& listing, int device) {
  TuningTarget target{listing.name, "", listing.description.kernels, 0};
  for (const DeviceDescription& described : listing.description.devices) {
    if (described.index == device && *described.name != '\0') target.device = described.name;
  }
  return target;
}

const BackendListing* find_listing(const std::vector<BackendListing>& backends,
                                   const LoraBackend& backend) {
  const auto found =
      std::find_if(backends.begin(), backends.end(), [&](const BackendListing& listing) {
        return std::strcmp(listing.name, backend.name()) == 0;
      });
  return found == backends.end() ? nullptr : &*found;
}

TuningUse tuning_use(const std::vector<BackendListing>& backends) {
  TuningUse use;
  const char* const path = std::getenv(kTuningVariable);
  if (path == nullptr || *path == '\0') return use;
  use.path = path;
  use.status = TuningTable::from_environment({}, nullptr, 0).status();
  if (!use.status.ok()) return use;
  for (const BackendListing& listing : backends) {
    const BackendDescription& description = listing.description;
    if (description.usable == 0) continue;
    const int count = std::min<int>(description.num_devices, BackendDescription::kMaxDevices);
    for (int i = 0; i < count; ++i) {
      const int index = description.devices[i].index;
      TuningUse::Device device{listing.name, index, description.kernels > 0, 0, 0};
      const auto table = TuningTable::from_environment(tuning_target(listing, index), nullptr, 0);
      if (table.ok()) {
        device.entries = table->size();
        device.others = table->num_others();
      }
      use.devices.push_back(device);
      if (!device.reads) break;  // one line says it of all its devices
    }
  }
  return use;
}

}  // namespace rankfold::tools
