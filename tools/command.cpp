// What several commands share.
#include "command.hpp"

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

std::vector<BackendListing> list_backends() {
  std::vector<BackendListing> backends(static_cast<std::size_t>(registry().list(nullptr, 0)));
  registry().list(backends.data(), static_cast<int>(backends.size()));
  return backends;
}

std::vector<StrategyInfo> list_strategies(const LoraBackend& backend) {
  std::vector<StrategyInfo> strategies(
      static_cast<std::size_t>(backend.list_strategies(nullptr, 0)));
  backend.list_strategies(strategies.data(), static_cast<int>(strategies.size()));
  return strategies;
}

std::vector<std::string> split_configurations(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t end = text.find("; ");
    parts.emplace_back(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 2);
  }
  return parts;
}

std::string describe(const Status& status) {
  return fmt::format("{}: {}", to_string(status.code()), printable(status.message()));
}

Json to_json(const Status& status) {
  return {{"code", to_string(status.code())}, {"message", status.message()}};
}

}  // namespace rankfold::tools
