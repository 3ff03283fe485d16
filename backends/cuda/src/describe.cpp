// How the registry sees this backend. Asking makes no context.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "architectures.hpp"
#include "backend.hpp"
#include "configurations.hpp"
#include "kernels/modules.hpp"
#include "rankfold/cuda.hpp"
#include "runtime.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

namespace {

constexpr int kMinMajor = 8;  // sm_80: what the kernels are written for

struct Version {
  explicit Version(int number) noexcept : major(number / 1000), minor(number % 1000 / 10) {}
  int major;
  int minor;
};

// Why no device can be used, or ok with their number.
Status count_devices(int* count) noexcept {
  *count = 0;
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    (void)cudaGetLastError();
    return Status(
        StatusCode::unavailable,
        "cuda: no NVIDIA driver is loaded; install one, or set RANKFOLD_BACKEND=reference");
  }
  const Version has(driver), needs(CUDART_VERSION);
  if (has.major < needs.major) {
    return Status::format(StatusCode::unavailable,
                          "cuda: the NVIDIA driver is for CUDA %d.%d; this build of rankfold needs "
                          "CUDA %d.%d; install a newer driver, or build with an older toolkit",
                          has.major, has.minor, needs.major, needs.minor);
  }
  const cudaError_t error = cudaGetDeviceCount(count);
  if (error != cudaSuccess || *count == 0) {
    (void)cudaGetLastError();
    *count = 0;
    return Status::format(StatusCode::unavailable,
                          "cuda: no NVIDIA device is visible (%s); check nvidia-smi and "
                          "CUDA_VISIBLE_DEVICES",
                          cudaGetErrorString(error));
  }
  return {};
}

int attribute(cudaDeviceAttr which, int device) noexcept {
  int value = 0;
  (void)to_status(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

DeviceTraits traits_of(int device) noexcept {
  DeviceTraits traits;
  traits.index = device;
  traits.num_sms = std::max(attribute(cudaDevAttrMultiProcessorCount, device), 1);
  traits.major = attribute(cudaDevAttrComputeCapabilityMajor, device);
  traits.minor = attribute(cudaDevAttrComputeCapabilityMinor, device);
  traits.shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  // In code for anything else those kernels are empty.
  traits.hopper_code = traits.major == 9 && traits.minor == 0 &&
                       std::strstr(RANKFOLD_CUDA_ARCHITECTURES, "90a") != nullptr;
  return traits;
}

Status check_device(const DeviceTraits& traits) noexcept {
  if (traits.major < kMinMajor) {
    return Status::format(StatusCode::unavailable,
                          "cuda: device %d has compute capability %d.%d; it should be %d.0 or more",
                          traits.index, traits.major, traits.minor, kMinMajor);
  }
  if (!runs_on(RANKFOLD_CUDA_ARCHITECTURES, traits.major, traits.minor)) {
    return Status::format(
        StatusCode::unavailable,
        "cuda: device %d has compute capability %d.%d, and this build has kernels for %s alone; "
        "configure with it in -DRANKFOLD_CUDA_ARCHITECTURES",
        traits.index, traits.major, traits.minor, RANKFOLD_CUDA_ARCHITECTURES);
  }
  return {};
}

// What tuning files know the device by, too.
void write_name(const cudaDeviceProp& properties, DeviceDescription* device) noexcept {
  std::snprintf(device->name, sizeof(device->name), "%.80s, sm_%d%d, %d SMs", properties.name,
                properties.major, properties.minor, properties.multiProcessorCount);
}

// The file that RANKFOLD_TUNING names, if there is one.
Status read_tuning(CudaBackend& backend) {
  const char* const path = std::getenv(kTuningVariable);
  if (path == nullptr || *path == '\0') return {};
  cudaDeviceProp properties{};
  DeviceDescription device;
  if (Status status = to_status(cudaGetDeviceProperties(&properties, backend.device().index),
                                "cudaGetDeviceProperties");
      !status.ok()) {
    return status;
  }
  write_name(properties, &device);
  std::vector<StrategyInfo> strategies(
      static_cast<std::size_t>(backend.list_strategies(nullptr, 0)));
  const int count = backend.list_strategies(strategies.data(), static_cast<int>(strategies.size()));
  const Result<TuningTable> table = TuningTable::from_environment(
      {"cuda", device.name, kKernelsVersion, 0}, strategies.data(), count);
  if (table.ok()) backend.set_tuning(*table);
  return table.status();
}

void describe(BackendDescription* description) {
  *description = {};
  description->kernels = kKernelsVersion;
  description->is_accelerator = 1;
  int driver = 0;
  (void)cudaDriverGetVersion(&driver);
  int count = 0;
  Status status = count_devices(&count);
  description->num_devices = count;
  bool any = false;
  for (int i = 0; i < std::min(count, BackendDescription::kMaxDevices); ++i) {
    DeviceDescription& device = description->devices[i];
    device.index = i;
    cudaDeviceProp properties{};
    if (const Status read =
            to_status(cudaGetDeviceProperties(&properties, i), "cudaGetDeviceProperties");
        !read.ok()) {
      status = read;
      continue;
    }
    device.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
    write_name(properties, &device);
    const Status fits = check_device(traits_of(i));
    any = any || fits.ok();
    if (!fits.ok() && status.ok()) status = fits;
  }
  description->usable = any ? 1 : 0;
  if (!any) {
    std::snprintf(description->reason, sizeof(description->reason), "%s", status.message());
  }
  const Version runtime(CUDART_VERSION), has(driver);
  if (driver == 0) {
    std::snprintf(description->detail, sizeof(description->detail),
                  "CUDA %d.%d, no driver, kernels for %s", runtime.major, runtime.minor,
                  RANKFOLD_CUDA_ARCHITECTURES);
    return;
  }
  std::snprintf(description->detail, sizeof(description->detail),
                "CUDA %d.%d, driver for CUDA %d.%d, kernels for %s", runtime.major, runtime.minor,
                has.major, has.minor, RANKFOLD_CUDA_ARCHITECTURES);
}

Status create(std::int32_t device_index, LoraBackend** backend) {
  int count = 0;
  if (Status status = count_devices(&count); !status.ok()) return status;
  if (device_index < 0 || device_index >= count) {
    return Status::format(StatusCode::unavailable,
                          "cuda: device %d does not exist; there are %d, counted from 0",
                          device_index, count);
  }
  const DeviceTraits traits = traits_of(device_index);
  if (Status status = check_device(traits); !status.ok()) return status;
  const DeviceScope scope(device_index);
  if (Status status = scope.status(); !status.ok()) return status;
  (void)load_kernels();
  auto made = std::make_unique<CudaBackend>(traits);
  if (Status status = read_tuning(*made); !status.ok()) return status;
  *backend = made.release();
  return {};
}

}  // namespace

const BackendDescriptor& descriptor() noexcept {
  static const BackendDescriptor self{
      .name = "cuda",
      .interface_version = kBackendInterfaceVersion,
      .priority = 100,
      .describe = &describe,
      .create = &create,
  };
  return self;
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
