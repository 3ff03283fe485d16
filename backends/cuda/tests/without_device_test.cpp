// What the backend says of itself, here, whether or not there is a GPU.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <cstring>
#include <string>

#include "rankfold/cuda.hpp"
#include "runtime.hpp"

using namespace rankfold;

TEST_CASE("the descriptor: name, priority, interface") {
  const BackendDescriptor& descriptor = cuda::descriptor();
  CHECK(std::string(descriptor.name) == "cuda");
  CHECK(descriptor.interface_version == kBackendInterfaceVersion);
  CHECK(descriptor.priority == 100);
}

TEST_CASE("without a device: a reason that names the cure; create gives the same") {
  BackendDescription description;
  cuda::descriptor().describe(&description);
  CHECK(description.is_accelerator == 1);
  CHECK(std::strstr(description.detail, "CUDA ") == description.detail);
  if (description.usable != 0) {
    CHECK(description.num_devices >= 1);
    CHECK(std::strlen(description.devices[0].name) > 0);
    return;
  }
  const std::string reason = description.reason;
  CHECK(reason.find("cuda: ") == 0);
  CHECK((reason.find("install") != std::string::npos ||
         reason.find("check nvidia-smi") != std::string::npos ||
         reason.find("configure with") != std::string::npos ||
         reason.find("should be") != std::string::npos));
  LoraBackend* made = nullptr;
  const Status status = cuda::descriptor().create(0, &made);
  CHECK(status.code() == StatusCode::unavailable);
  CHECK(made == nullptr);
}

TEST_CASE("the registry: cuda by name is refused with the variable's value and the reason") {
  Registry& registry = Registry::instance();
  REQUIRE(registry.add(cuda::descriptor()).ok());
  BackendDescription description;
  cuda::descriptor().describe(&description);
  if (description.usable != 0) {
    const Status status = registry.get("cuda:99").status();
    CHECK(status.code() == StatusCode::unavailable);
    CHECK(std::strstr(status.message(), "99") != nullptr);
    return;
  }
  const Status status = registry.get("cuda").status();
  CHECK(status.code() == StatusCode::unavailable);
  CHECK(std::strstr(status.message(), "cannot be used here") != nullptr);
  CHECK(std::strstr(status.message(), description.reason) != nullptr);
}

TEST_CASE("errors of the runtime as statuses") {
  CHECK(cuda::to_status(cudaSuccess, "cudaMalloc").ok());
  const Status memory = cuda::to_status(cudaErrorMemoryAllocation, "cudaMalloc");
  CHECK(memory.code() == StatusCode::out_of_memory);
  CHECK(std::strstr(memory.message(), "cudaMalloc") != nullptr);
  const Status launch = cuda::to_status(cudaErrorLaunchFailure, "cudaLaunchKernelEx");
  CHECK(launch.code() == StatusCode::device_error);
  CHECK(std::strstr(launch.message(), "cudaErrorLaunchFailure") != nullptr);
}
