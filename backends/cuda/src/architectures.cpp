#include "architectures.hpp"

#include <cstdlib>
#include <cstring>

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

bool runs_on(const char* architectures, int major, int minor) noexcept {
  const int device = 10 * major + minor;
  for (const char* at = architectures; *at != '\0';) {
    char* end = nullptr;
    const int version = static_cast<int>(std::strtol(at, &end, 10));
    if (end == at) return true;  // "native", "all": nothing is known, so nothing is refused
    const bool exact_only = *end == 'a';
    const bool same_family_only = *end == 'f';
    if (exact_only || same_family_only) ++end;
    const bool has_machine_code = std::strncmp(end, "-virtual", 8) != 0;
    const bool has_ptx = std::strncmp(end, "-real", 5) != 0;
    if (exact_only) {
      if (device == version) return true;
    } else {
      const bool same_major = version / 10 == major && version <= device;
      if ((has_machine_code && same_major) || (same_family_only && same_major)) return true;
      if (has_ptx && !same_family_only && version <= device) return true;
    }
    at = std::strchr(end, ',');
    if (at == nullptr) break;
    ++at;
  }
  return *architectures == '\0';
}

}  // namespace cuda
RANKFOLD_NAMESPACE_END
