// What RANKFOLD_TUNING means on this machine, for the commands that report it.
#pragma once

#include <string>
#include <vector>

#include "output.hpp"
#include "rankfold/backend.hpp"
#include "rankfold/registry.hpp"
#include "rankfold/tuning.hpp"

namespace rankfold::tools {

/// The file and who takes what of it.
struct TuningUse {
  struct Device {
    std::string backend;
    int index = 0;
    bool reads = false;  ///< the backend reads tuning files at all
    int entries = 0;     ///< for this device
    int others = 0;      ///< for other devices, backends or kernels
  };
  std::string path;  ///< empty: the variable is not set
  Status status;     ///< why nobody can read the file
  std::vector<Device> devices;

  /// "12 entries for cuda:0, 3 for others".
  static std::string describe(const Device& device);
};
TuningUse tuning_use(const std::vector<BackendListing>& backends);

/// Of one device; name and kernels as the listing of its backend says. The listing must outlive it.
TuningTarget tuning_target(const BackendListing& listing, int device);
/// The listing of an instance's backend; null where the registry has none.
const BackendListing* find_listing(const std::vector<BackendListing>& backends,
                                   const LoraBackend& backend);

}  // namespace rankfold::tools
