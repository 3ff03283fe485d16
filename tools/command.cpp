// What several commands share.
#include "command.hpp"

#include "rankfold/registry.hpp"

namespace rankfold::tools {

LoraBackend& select_backend(const std::string& specification) {
  if (!specification.empty()) {
    if (const Status status = registry().choose(specification.c_str()); !status.ok()) {
      throw CommandError(kExitUsage, "--backend: " + describe(status));
    }
  }
  const Result<LoraBackend*> backend = try_backend();
  if (!backend.ok()) throw CommandError(kExitUsage, describe(backend.status()));
  return **backend;
}

std::string describe(const Status& status) {
  return fmt::format("{}: {}", to_string(status.code()), printable(status.message()));
}

Json to_json(const Status& status) {
  return {{"code", to_string(status.code())}, {"message", status.message()}};
}

}  // namespace rankfold::tools
