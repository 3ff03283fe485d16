#include "rankfold/adapter.hpp"

#include <filesystem>
#include <string>
#include <utility>

#include "adapter/file_names.hpp"
#include "adapter/parsed_adapter.hpp"
#include "adapter/safetensors_header.hpp"
#include "guard.hpp"

RANKFOLD_NAMESPACE_BEGIN

namespace {

using detail::kConfigName;
using detail::kTensorsName;

Status check_options(const AdapterOptions& options) {
  if (options.num_allowed_keys < 0 ||
      (options.num_allowed_keys > 0 && options.allowed_keys == nullptr)) {
    return Status::format(StatusCode::invalid_argument,
                          "options.num_allowed_keys is %d, it must count allowed_keys",
                          options.num_allowed_keys);
  }
  for (std::int32_t i = 0; i < options.num_allowed_keys; ++i) {
    if (options.allowed_keys[i] == nullptr) {
      return Status::format(StatusCode::invalid_argument,
                            "options.allowed_keys[%d] is null, it must be the name of a key", i);
    }
  }
  return {};
}

AdapterModule describe(const detail::LoraModule& module) {
  AdapterModule out;
  out.path = module.path.c_str();
  out.is_embedding = module.embedding ? 1 : 0;
  out.is_parameter = module.parameter ? 1 : 0;
  out.num_experts = static_cast<std::int32_t>(module.num_experts);
  out.has_bias = module.bias != nullptr ? 1 : 0;
  out.rank = module.num_experts > 1 ? module.rank / module.num_experts : module.rank;
  out.alpha = module.alpha;
  out.scaling = module.scaling;
  out.in = module.in;
  out.out = module.out;
  for (const SafetensorsEntry* entry : {module.a, module.b, module.bias}) {
    if (entry != nullptr) out.bytes += static_cast<std::int64_t>(entry->bytes);
  }
  if (module.a != nullptr) out.a_dtype = module.a->dtype;
  if (module.b != nullptr) out.b_dtype = module.b->dtype;
  return out;
}

}  // namespace

struct AdapterFile::State {
  detail::ParsedAdapter parsed;
  std::vector<AdapterModule> modules;
};

struct Adapter::State {
  detail::ParsedAdapter parsed;
  detail::BoundAdapter bound;
};

AdapterFile::AdapterFile(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
AdapterFile::AdapterFile(AdapterFile&&) noexcept = default;
AdapterFile& AdapterFile::operator=(AdapterFile&&) noexcept = default;
AdapterFile::~AdapterFile() = default;

Result<AdapterFile> AdapterFile::open(std::string_view path, const AdapterOptions& options) {
  return detail::guarded([&]() -> Result<AdapterFile> {
    std::filesystem::path tensors{std::string(path)};
    std::error_code error;
    // What the caller gave, not the files expected in it.
    if (!std::filesystem::exists(tensors, error) && !error) {
      return Status(StatusCode::invalid_argument,
                    "no such PEFT directory or safetensors file: " + detail::quote(path));
    }
    if (std::filesystem::is_directory(tensors, error)) tensors /= kTensorsName;
    const std::filesystem::path config = tensors.parent_path() / kConfigName;
    auto text = detail::read_file(config.string(), detail::kMaxConfigBytes);
    if (!text) return text.status();
    auto bytes = detail::read_file(tensors.string(), UINTMAX_MAX, &detail::check_file_start);
    if (!bytes) return bytes.status();
    return parse({reinterpret_cast<const char*>(text->data()), text->size()}, std::move(*bytes),
                 path, options);
  });
}

Result<AdapterFile> AdapterFile::parse(std::string_view config, std::vector<std::byte> tensors,
                                       std::string_view name, const AdapterOptions& options) {
  return detail::guarded([&]() -> Result<AdapterFile> {
    if (Status status = check_options(options); !status.ok()) return status;
    detail::Findings findings;
    auto parsed_config = detail::parse_peft_config(config, std::string(name) + ": " + kConfigName,
                                                   options, findings);
    if (!parsed_config) return parsed_config.status();
    auto file = Safetensors::parse(std::move(tensors), std::string(name) + ": " + kTensorsName);
    if (!file) return file.status();
    auto state = std::make_unique<State>(State{
        {std::move(*file), std::move(*parsed_config), std::move(findings), options.unbound, {}, {}},
        {}});
    detail::group_tensors(state->parsed);
    for (const detail::LoraModule& module : state->parsed.modules) {
      state->modules.push_back(describe(module));
    }
    return AdapterFile(std::move(state));
  });
}

std::span<const AdapterModule> AdapterFile::modules() const noexcept {
  if (state_ == nullptr) return {};
  return state_->modules;
}

std::span<const Finding> AdapterFile::findings() const noexcept {
  if (state_ == nullptr) return {};
  return state_->parsed.findings.list();
}

const Status& AdapterFile::status() const noexcept {
  static const Status kEmpty(StatusCode::invalid_argument, "the adapter file was moved from");
  return state_ == nullptr ? kEmpty : state_->parsed.findings.status();
}

Result<Adapter> AdapterFile::bind(std::span<const TargetSpec> targets) && {
  return detail::guarded([&]() -> Result<Adapter> {
    if (!status().ok()) return status();
    if (Status status = detail::check_targets(targets); !status.ok()) return status;
    auto state = std::unique_ptr<Adapter::State>(
        new Adapter::State{std::move(state_->parsed), detail::BoundAdapter{}});
    const Status bound = detail::bind_modules(state->parsed, targets, state->bound);
    if (!bound.ok()) {
      state_->parsed = std::move(state->parsed);
      return bound;
    }
    state_.reset();
    return Adapter(std::move(state));
  });
}

Adapter::Adapter(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
Adapter::Adapter(Adapter&&) noexcept = default;
Adapter& Adapter::operator=(Adapter&&) noexcept = default;
Adapter::~Adapter() = default;

std::span<const AdapterBinding> Adapter::bindings() const noexcept {
  if (state_ == nullptr) return {};
  return state_->bound.bindings;
}
std::span<const TensorBinding> Adapter::report() const noexcept {
  if (state_ == nullptr) return {};
  return state_->bound.report;
}
std::span<const Finding> Adapter::findings() const noexcept {
  if (state_ == nullptr) return {};
  return state_->parsed.findings.list();
}
std::int64_t Adapter::weight_bytes() const noexcept {
  return state_ == nullptr ? 0 : state_->bound.weight_bytes;
}

Result<Adapter> load_adapter(std::string_view path, std::span<const TargetSpec> targets,
                             const AdapterOptions& options) {
  auto file = AdapterFile::open(path, options);
  if (!file) return file.status();
  return std::move(*file).bind(targets);
}

RANKFOLD_NAMESPACE_END
