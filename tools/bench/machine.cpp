#include "machine.hpp"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>

#include "command.hpp"

namespace rankfold::tools {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kLeastColdBytes = 192 * kMiB;
constexpr std::int64_t kUnknownMemory = 2048 * kMiB;

// The largest cache that Linux describes for the first CPU; 0: it describes none.
std::int64_t last_level_cache() {
  std::int64_t largest = 0;
  for (int index = 0; index < 8; ++index) {
    std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) +
                       "/size");
    std::int64_t size = 0;
    char unit = ' ';
    if (!(file >> size)) continue;
    file >> unit;
    if (unit == 'K') size *= 1024;
    if (unit == 'M') size *= kMiB;
    largest = std::max(largest, size);
  }
  return largest;
}

std::int64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::int64_t kibibytes = 0;
  std::string unit;
  while (file >> key >> kibibytes) {
    std::getline(file, unit);
    if (key == "MemAvailable:") return kibibytes * 1024;
  }
  return kUnknownMemory;
}

std::int64_t device_memory(const LoraBackend& backend) {
  for (const BackendListing& listing : list_backends()) {
    if (std::strcmp(listing.name, backend.name()) != 0) continue;
    for (const DeviceDescription& device : listing.description.devices) {
      if (device.index == backend.device().index && device.memory_bytes > 0) {
        return device.memory_bytes;
      }
    }
  }
  return kUnknownMemory;
}

}  // namespace

MachineLimits machine_limits(const LoraBackend& backend, std::int64_t device_cache_bytes) {
  MachineLimits limits;
  const bool host = backend.device().type == DeviceType::cpu;
  limits.cache_bytes = host ? last_level_cache() : device_cache_bytes;
  limits.memory_bytes = (host ? available_memory() : device_memory(backend)) / 2;
  // Copies used in turn have left the cache long before they come round again.
  limits.cold_bytes = std::max(kLeastColdBytes, (host ? 2 : 3) * limits.cache_bytes);
  limits.cold_bytes = std::min(limits.cold_bytes, limits.memory_bytes / 2);
  return limits;
}

}  // namespace rankfold::tools
