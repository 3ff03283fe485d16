// The registry: which backends there are, and which one this process uses.
//
// RANKFOLD_BACKEND: empty or "auto" | name | name:device, case-insensitive ("cpu" = "reference").
// auto takes cuda, then kokkos if its default space is a device, then reference. An explicit wish
// never falls back. Four distinct errors, each naming the variable, the value and the cure:
// invalid_argument (malformed: quotes the grammar), unknown_backend (lists what there is),
// not_compiled (names the CMake option), unavailable (no driver, no device, bad index, too old).
#pragma once

#include <cstdint>
#include <type_traits>

#include "rankfold/backend.hpp"
#include "rankfold/export.hpp"
#include "rankfold/status.hpp"

RANKFOLD_NAMESPACE_BEGIN

/// One device that a backend could use.
struct DeviceDescription {
  std::int32_t index = 0;
  std::int32_t reserved = 0;
  std::int64_t memory_bytes = 0;  ///< 0: not known
  char name[112] = {};            ///< "Intel(R) Xeon(R) ..., 2 threads", "NVIDIA H200"
};

/// What a backend says of this machine. Makes no context and touches no driver beyond asking.
struct BackendDescription {
  static constexpr int kMaxDevices = 16;
  std::int32_t usable = 0;          ///< 1 or 0
  std::int32_t is_accelerator = 0;  ///< 1: auto prefers it to reference
  std::int32_t num_devices = 0;     ///< may be more than kMaxDevices; the first are described
  /// Version of its kernels and their configurations, for which tuning files are made; 0: it reads
  /// none.
  std::int32_t kernels = 0;
  DeviceDescription devices[kMaxDevices] = {};
  char reason[512] = {};  ///< why not usable, and the cure; "" when usable
  char detail[256] = {};  ///< versions, instruction set, execution space
};
static_assert(std::is_trivially_copyable_v<BackendDescription> &&
              std::is_standard_layout_v<BackendDescription>);

/// How a backend registers. Strings and functions must live as long as the process.
struct BackendDescriptor {
  const char* name = nullptr;  ///< lower case, [a-z][a-z0-9_]*
  std::int32_t interface_version = kBackendInterfaceVersion;
  /// Larger is taken earlier by auto. reference 0, kokkos 50, cuda 100.
  std::int32_t priority = 0;
  void (*describe)(BackendDescription* description) = nullptr;
  /// Makes the backend of one device; the registry owns it. Errors: unavailable, out_of_memory.
  Status (*create)(std::int32_t device_index, LoraBackend** backend) = nullptr;
};

/// A backend of this library that this build leaves out.
struct MissingBackend {
  const char* name = nullptr;
  const char* option = nullptr;  ///< "RANKFOLD_CUDA=ON"; "" when no option builds it
  const char* reason = nullptr;  ///< why the build left it out, or ""
};

/// One line of `rankfold list`.
struct BackendListing {
  char name[64] = {};
  std::int32_t built = 0;          ///< 1 or 0
  std::int32_t taken_by_auto = 0;  ///< 1 for the one that auto takes here
  BackendDescription description =
      {};  ///< reason also says why a better one is passed over by auto
};

/// What a specification selects.
struct BackendChoice {
  char name[64] = {};
  std::int32_t device = 0;
  std::int32_t reserved = 0;
};

/// Process-wide, thread-safe, never destroyed. Listing creates no backend.
class RANKFOLD_EXPORT Registry {
 public:
  /// The registry of the process, with the backends that somebody has added.
  static Registry& instance() noexcept;

  /// Adds a host's own backend. Errors: invalid_argument (name, null function, name taken),
  /// unsupported (another interface version, naming both).
  Status add(const BackendDescriptor& descriptor) noexcept;
  /// Names a backend that this build leaves out, so that asking for it can say which option.
  Status add_missing(const MissingBackend& missing) noexcept;

  /// The process's backend, by code or by RANKFOLD_BACKEND: resolved once, at the first call.
  Result<LoraBackend*> backend() noexcept;
  /// Chooses by code, in the variable's grammar; code beats the variable. After resolution another
  /// choice is invalid_argument; the same one is ok.
  Status choose(const char* specification) noexcept;
  /// A further instance, shared by all who ask for the same name and device; lives as long as the
  /// process. Same grammar and errors.
  Result<LoraBackend*> get(const char* specification) noexcept;

  /// All backends, best first: those of this build, a host's own, and the missing ones. Returns how
  /// many there are; writes at most `capacity`. Never creates a backend.
  int list(BackendListing* out, int capacity) noexcept;

  /// What a specification, or with null RANKFOLD_BACKEND, selects on this machine, without creating
  /// it. Errors as backend().
  Result<BackendChoice> resolve(const char* specification) noexcept;

 private:
  Registry();
  ~Registry() = delete;
  struct State;
  State* state_;
};

/// The registry with every backend of this build added. Link rankfold::rankfold for it.
RANKFOLD_EXPORT Registry& registry() noexcept;

/// registry().backend(), throwing Error.
RANKFOLD_EXPORT LoraBackend& backend();
/// registry().backend().
RANKFOLD_EXPORT Result<LoraBackend*> try_backend() noexcept;
/// registry().get(specification), throwing Error: "reference", "cuda:1".
RANKFOLD_EXPORT LoraBackend& get_backend(const char* specification);

RANKFOLD_NAMESPACE_END
