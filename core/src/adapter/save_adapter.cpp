#include "rankfold/save_adapter.hpp"

#include <algorithm>
#include <cmath>
#include <deque>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "adapter/file_names.hpp"
#include "adapter/parsed_adapter.hpp"
#include "adapter/safetensors_writer.hpp"
#include "adapter/saved_modules.hpp"
#include "guard.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

namespace {

Status invalid(const std::string& text) { return Status(StatusCode::invalid_argument, text); }

Status check_options(const SaveAdapterOptions& options) {
  if (options.scaling != ScalingRule::rank && options.scaling != ScalingRule::sqrt_rank) {
    return invalid("options.scaling is " + std::to_string(static_cast<int>(options.scaling)) +
                   ", it must be rank or sqrt_rank");
  }
  if (!(options.dropout >= 0 && options.dropout < 1)) {
    return invalid("options.dropout is " + std::to_string(options.dropout) +
                   ", it must be from 0 to less than 1");
  }
  return {};
}

// lora_bias is of the whole adapter: modules without a bias get zeros, and PEFT refuses it where
// anything but linear layers is adapted.
Status settle_biases(std::vector<SavedModule>& modules) {
  const auto has_bias = [](const SavedModule& module) { return module.bias.given(); };
  const auto with = std::find_if(modules.begin(), modules.end(), has_bias);
  if (with == modules.end()) return {};
  for (SavedModule& module : modules) {
    if (module.kind != TargetKind::linear) {
      return Status(StatusCode::unsupported, "module " + quote(with->path) +
                                                 " has a bias, and PEFT has none beside module " +
                                                 quote(module.path) + ", which is not linear");
    }
    if (has_bias(module)) continue;
    module.bias = {DType::f32, 1, {module.b.sizes[0], 1}, nullptr, {}};
    module.bias.copied.resize(static_cast<std::size_t>(module.b.sizes[0]) * sizeof(float));
  }
  return {};
}

// The tensors of the file; names live in `names`. Errors: a name that means something else to the
// reader.
Status list_tensors(const std::vector<SavedModule>& modules, std::deque<std::string>& names,
                    std::vector<SafetensorsTensor>& tensors) {
  for (const SavedModule& module : modules) {
    const bool embedding = module.kind == TargetKind::embedding;
    if (module.pair_path.size() > kMaxPathBytes) {
      return Status(StatusCode::unsupported, "the module path " + quote(module.pair_path) +
                                                 " has " + std::to_string(module.pair_path.size()) +
                                                 " bytes, the most is " +
                                                 std::to_string(kMaxPathBytes));
    }
    const auto add = [&](const DenseTensor& tensor, TensorRole role, const char* suffix) -> Status {
      names.push_back("base_model.model." + module.pair_path + suffix);
      const TensorKey key = parse_tensor_key(names.back());
      if (key.role != role || key.path != module.pair_path || has_control(key.path)) {
        return Status(StatusCode::unsupported, "the module path " + quote(module.pair_path) +
                                                   " means something else to a reader of adapters");
      }
      tensors.push_back({.name = names.back().c_str(),
                         .dtype = tensor.dtype,
                         .num_dims = tensor.num_dims,
                         .sizes = {tensor.sizes[0], tensor.sizes[1]},
                         .data = tensor.data()});
      return {};
    };
    Status status = embedding ? add(module.a, TensorRole::embedding_a, ".lora_embedding_A")
                              : add(module.a, TensorRole::lora_a, ".lora_A.weight");
    if (status.ok()) {
      status = embedding ? add(module.b, TensorRole::embedding_b, ".lora_embedding_B")
                         : add(module.b, TensorRole::lora_b, ".lora_B.weight");
    }
    if (status.ok() && module.bias.given()) {
      status = add(module.bias, TensorRole::lora_bias, ".lora_B.bias");
    }
    if (!status.ok()) return status;
  }
  return {};
}

// The config as load_adapter() will read it gives every module its rank and scaling back.
Status check_config(const std::string& text, const std::vector<SavedModule>& modules,
                    ScalingRule rule) {
  Findings findings;
  const auto config = parse_peft_config(text, kConfigName, {}, findings);
  if (!config) return config.status();
  if (!findings.status().ok()) return findings.status();
  for (const SavedModule& module : modules) {
    const auto settled = settle_scaling(*config, module.path, module.rank);
    if (!settled) return settled.status();
    if (settled->scaling != scaling_of(module.alpha, module.rank, rule == ScalingRule::sqrt_rank)) {
      return Status(StatusCode::internal,
                    "the patterns give module " + quote(module.path) + " another alpha");
    }
  }
  return {};
}

Status write_files(const std::string& directory, const std::string& config_text,
                   const SafetensorsStart& start, std::span<const SafetensorsTensor> tensors) {
  auto folder = NewFolder::create(directory);
  if (!folder) return folder.status();
  const std::filesystem::path path(directory);
  auto config = NewFile::create((path / kConfigName).string());
  if (!config) return config.status();
  auto file = NewFile::create((path / kTensorsName).string());
  if (!file) return file.status();
  Status status = config->write(config_text.data(), config_text.size());
  if (status.ok()) status = config->finish();
  if (status.ok()) status = write_safetensors(*file, start, tensors);
  // Between the two renames a reader finds no config, rather than one of other tensors.
  if (status.ok()) status = config->set_aside();
  if (status.ok()) status = file->set_aside();
  if (status.ok()) status = file->publish();
  if (status.ok()) status = config->publish();
  if (!status.ok()) return status;
  file->settle();
  config->settle();
  folder->keep();
  return {};
}

Status save(std::string_view directory, std::span<const TargetSpec> targets,
            std::span<const AdapterWeights> weights, const SaveAdapterOptions& options) {
  if (directory.empty()) return invalid("directory is empty, it must be a path");
  if (Status status = check_options(options); !status.ok()) return status;
  auto modules = collect_modules(targets, weights);
  if (!modules) return modules.status();
  if (Status status = settle_biases(*modules); !status.ok()) return status;
  std::deque<std::string> names;
  std::vector<SafetensorsTensor> tensors;
  if (Status status = list_tensors(*modules, names, tensors); !status.ok()) return status;
  const std::string config = make_peft_config(*modules, options);
  if (Status status = check_config(config, *modules, options.scaling); !status.ok()) return status;
  const SafetensorsMetadata metadata[] = {{"format", "pt"}};  // which PEFT's reader asks for
  const auto start = make_safetensors_start(tensors, metadata);
  if (!start) return start.status();
  return write_files(std::string(directory), config, *start, tensors);
}

}  // namespace
}  // namespace detail

Status save_adapter(std::string_view directory, std::span<const TargetSpec> targets,
                    std::span<const AdapterWeights> weights, const SaveAdapterOptions& options) {
  return detail::guarded([&]() -> Status {
    try {
      return detail::save(directory, targets, weights, options);
    } catch (const nlohmann::json::exception&) {
      return Status(StatusCode::invalid_argument,
                    "a module path, options.base_model or options.task_type is not UTF-8");
    }
  });
}

RANKFOLD_NAMESPACE_END
