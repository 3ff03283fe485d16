// How the registry sees this backend.
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/version.h>
#include <Eigen/Core>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <new>
#include <string>

#include "backend.hpp"
#include "kernels/simd.hpp"
#include "rankfold/reference.hpp"

#if defined(__unix__)
#include <unistd.h>
#endif

RANKFOLD_NAMESPACE_BEGIN
namespace reference {

namespace {

const char* instruction_set() noexcept {
#if RANKFOLD_REFERENCE_AVX2
  return "AVX2+FMA+F16C";
#elif defined(__x86_64__)
  return "SSE2";
#elif defined(__ARM_NEON)
  return "NEON";
#else
  return "scalar";
#endif
}

/// The model name as Linux reports it; "CPU" elsewhere.
std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const std::size_t start = line.find_first_not_of(" \t", line.find(':') + 1);
    if (start != std::string::npos) return line.substr(start);
  }
  return "CPU";
}

std::int64_t memory_bytes() noexcept {
#if defined(_SC_PHYS_PAGES) && defined(_SC_PAGESIZE)
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page = sysconf(_SC_PAGESIZE);
  if (pages > 0 && page > 0) return std::int64_t{pages} * page;
#endif
  return 0;
}

/// Whether this processor has what the backend was compiled for.
bool processor_fits() noexcept {
#if RANKFOLD_REFERENCE_AVX2
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
#else
  return true;
#endif
}

void describe(BackendDescription* description) {
  *description = {};
  const int threads = tbb::info::default_concurrency();
  description->num_devices = 1;
  DeviceDescription& device = description->devices[0];
  device.memory_bytes = memory_bytes();
  std::snprintf(device.name, sizeof(device.name), "%.90s, %d threads", cpu_name().c_str(), threads);
  std::snprintf(description->detail, sizeof(description->detail),
                "%s, Eigen %d.%d.%d, oneTBB %d.%d", instruction_set(), EIGEN_WORLD_VERSION,
                EIGEN_MAJOR_VERSION, EIGEN_MINOR_VERSION, TBB_VERSION_MAJOR, TBB_VERSION_MINOR);
  description->usable = processor_fits() ? 1 : 0;
  if (description->usable == 0) {
    std::snprintf(description->reason, sizeof(description->reason),
                  "built for %s, which this processor lacks; configure with "
                  "RANKFOLD_ARCH=BASELINE",
                  instruction_set());
  }
}

Status create(std::int32_t device_index, LoraBackend** backend) {
  if (device_index != 0) {
    return Status::format(StatusCode::unavailable,
                          "reference: device %d does not exist; the only device is 0",
                          device_index);
  }
  if (!processor_fits()) {
    return Status::format(StatusCode::unavailable,
                          "reference: built for %s, which this processor lacks; configure with "
                          "RANKFOLD_ARCH=BASELINE",
                          instruction_set());
  }
  *backend = new (std::nothrow) ReferenceBackend;
  if (*backend == nullptr) return Status(StatusCode::out_of_memory, "host memory is exhausted");
  return {};
}

}  // namespace

const BackendDescriptor& descriptor() noexcept {
  static const BackendDescriptor self{
      .name = "reference",
      .interface_version = kBackendInterfaceVersion,
      .priority = 0,
      .describe = &describe,
      .create = &create,
  };
  return self;
}

}  // namespace reference
RANKFOLD_NAMESPACE_END
