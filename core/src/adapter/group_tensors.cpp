#include <cmath>
#include <map>

#include "adapter/parsed_adapter.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

namespace {

class Grouping {
 public:
  explicit Grouping(ParsedAdapter& adapter) : adapter_(adapter), findings_(adapter.findings) {}

  void run() {
    const auto entries = adapter_.tensors.entries();
    adapter_.classes.resize(entries.size());
    for (std::size_t i = 0; i < entries.size(); ++i) classify(entries[i], adapter_.classes[i]);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (adapter_.classes[i].role == TensorRole::base_copy) {
        attach_base_copy(entries[i], adapter_.classes[i]);
      }
    }
    for (LoraModule& module : adapter_.modules) module.complete = check(module);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (adapter_.classes[i].role == TensorRole::unknown) report_unknown(entries[i], i);
    }
    if (adapter_.modules.empty()) {
      findings_.refuse(StatusCode::malformed_file, "", "the file holds no LoRA tensors");
    }
  }

 private:
  void malformed(std::string_view subject, std::string text) {
    findings_.refuse(StatusCode::malformed_file, subject, std::move(text));
  }
  void unsupported(std::string_view subject, std::string text) {
    findings_.refuse(StatusCode::unsupported, subject, std::move(text));
  }

  void classify(const SafetensorsEntry& entry, TensorClass& its) {
    TensorKey key = parse_tensor_key(entry.name);
    its.role = key.role;
    its.why = key.why;
    if (key.role == TensorRole::refused) {
      return unsupported(entry.name, "tensor " + quote(entry.name) + ": " + key.why);
    }
    if (key.role == TensorRole::unknown) return;
    if (key.path.size() > kMaxPathBytes) {
      its.role = TensorRole::refused;
      return unsupported(entry.name, "the module path " + quote(key.path) + " has " +
                                         std::to_string(key.path.size()) + " bytes, the most is " +
                                         std::to_string(kMaxPathBytes));
    }
    if (has_control(key.path)) {
      its.role = TensorRole::refused;
      return malformed(entry.name,
                       "the module path " + quote(key.path) + " holds a control character");
    }
    if (key.role == TensorRole::base_copy) {
      copies_.emplace(&its, std::move(key.path));
      return;
    }
    place(entry, its, std::move(key.path));
  }

  void place(const SafetensorsEntry& entry, TensorClass& its, std::string path) {
    const auto [found, is_new] =
        by_path_.emplace(path, static_cast<std::int32_t>(adapter_.modules.size()));
    if (is_new) adapter_.modules.emplace_back().path = std::move(path);
    its.module = found->second;
    LoraModule& module = adapter_.modules[static_cast<std::size_t>(its.module)];
    const bool embedding =
        its.role == TensorRole::embedding_a || its.role == TensorRole::embedding_b;
    const bool is_a = its.role == TensorRole::lora_a || its.role == TensorRole::embedding_a;
    const bool has_any = module.a != nullptr || module.b != nullptr || module.bias != nullptr;
    if (has_any && module.embedding != embedding) {
      return malformed(entry.name, "module " + quote(module.path) +
                                       " has tensors of a linear layer and of an embedding");
    }
    module.embedding = embedding;
    const SafetensorsEntry*& where = is_a                                ? module.a
                                     : its.role == TensorRole::lora_bias ? module.bias
                                                                         : module.b;
    if (where != nullptr) {
      return malformed(entry.name, "tensors " + quote(where->name) + " and " + quote(entry.name) +
                                       " are the same one by two names");
    }
    where = &entry;
  }

  void attach_base_copy(const SafetensorsEntry& entry, TensorClass& its) {
    const std::string& path = copies_.at(&its);
    const auto found = by_path_.find(path);
    if (found == by_path_.end()) {
      its.role = TensorRole::unknown;
      its.why = "a copy of the base without LoRA tensors of its module";
      return;
    }
    LoraModule& module = adapter_.modules[static_cast<std::size_t>(found->second)];
    if (module.base_copy != nullptr) {
      its.role = TensorRole::refused;
      return malformed(entry.name, "tensors " + quote(module.base_copy->name) + " and " +
                                       quote(entry.name) + " are the same one by two names");
    }
    its.module = found->second;
    module.base_copy = &entry;
  }

  void report_unknown(const SafetensorsEntry& entry, std::size_t index) {
    const std::string text =
        "tensor " + quote(entry.name) + " binds to nothing: " + adapter_.classes[index].why;
    if (adapter_.unbound == AdapterOptions::Unbound::allow) {
      findings_.note(entry.name, text);
    } else {
      findings_.refuse(StatusCode::unsupported, entry.name, text);
    }
  }

  bool check(LoraModule& module) {
    const std::string name = "module " + quote(module.path);
    if (module.a == nullptr || module.b == nullptr) {
      const SafetensorsEntry* present = module.a ? module.a : module.b ? module.b : module.bias;
      malformed(module.path, name + " has " + quote(present->name) + " but no " +
                                 (module.a == nullptr ? "A" : "B"));
      return false;
    }
    for (const SafetensorsEntry* weight : {module.a, module.b, module.bias}) {
      if (weight == nullptr) continue;
      const int num_dims = weight == module.bias ? 1 : 2;
      if (weight->num_dims != num_dims) {
        unsupported(weight->name, "tensor " + quote(weight->name) + " has shape " +
                                      shape_text(*weight) + ", " + std::to_string(num_dims) +
                                      " dimensions are supported");
        return false;
      }
      if (weight->has_dtype == 0 || !is_activation(weight->dtype)) {
        unsupported(weight->name, "tensor " + quote(weight->name) + " has dtype " +
                                      weight->dtype_name + ", F32, F16 and BF16 are supported");
        return false;
      }
    }
    module.in = module.a->sizes[1];
    module.out = module.b->sizes[0];
    if (!check_shapes(module, name)) return false;
    module.parameter = is_parameter(module.path);
    return module.parameter ? true : settle_scaling(module, name);
  }

  bool check_shapes(LoraModule& module, const std::string& name) {
    module.rank = module.a->sizes[0];
    if (module.rank != module.b->sizes[1]) {
      malformed(module.path, name + ": A " + shape_text(*module.a) + " has rank " +
                                 std::to_string(module.rank) + ", B " + shape_text(*module.b) +
                                 " has rank " + std::to_string(module.b->sizes[1]));
      return false;
    }
    if (module.rank < 1 || module.rank > INT32_MAX || module.in < 1 || module.out < 1) {
      malformed(module.path, name + ": A " + shape_text(*module.a) + " and B " +
                                 shape_text(*module.b) + " must not be empty");
      return false;
    }
    if (module.bias != nullptr && module.bias->sizes[0] != module.out) {
      malformed(module.path, name + ": bias " + shape_text(*module.bias) + " does not fit B " +
                                 shape_text(*module.b));
      return false;
    }
    if (module.bias != nullptr && !adapter_.config.lora_bias) {
      malformed(module.path, name + " has a bias, but lora_bias of the config is not true");
      return false;
    }
    if (module.bias == nullptr && adapter_.config.lora_bias && !module.embedding) {
      malformed(module.path, name + " has no bias, but lora_bias of the config is true");
      return false;
    }
    return true;
  }

  bool is_parameter(const std::string& path) const {
    const std::string_view module = without_base_layers(path);
    if (module.size() != path.size()) return true;
    for (std::string_view parameter : adapter_.config.target_parameters) {
      const std::string_view owner = parameter.substr(0, parameter.rfind('.'));
      if (owner.size() == parameter.size() || owner.size() > module.size()) continue;
      if (module.substr(module.size() - owner.size()) != owner) continue;
      if (owner.size() == module.size() || module[module.size() - owner.size() - 1] == '.') {
        return true;
      }
    }
    return false;
  }

  bool settle_scaling(LoraModule& module, const std::string& name) {
    const PeftConfig& config = adapter_.config;
    const auto rank = config.rank_pattern.find(module.path, config.rank);
    const auto alpha = config.alpha_pattern.find(module.path, config.alpha);
    for (const Status& status : {rank.status(), alpha.status()}) {
      if (status.ok()) continue;
      findings_.refuse(status.code(), module.path, status.message());
      return false;
    }
    if (*rank == 0 || !config.has_alpha) return false;  // a finding names the key already
    if (static_cast<std::int64_t>(*rank) != module.rank) {
      malformed(module.path, name + " has rank " + std::to_string(module.rank) +
                                 " by its tensors, A " + shape_text(*module.a) + ", and rank " +
                                 std::to_string(static_cast<std::int64_t>(*rank)) +
                                 " by the config");
      return false;
    }
    module.alpha = *alpha;
    module.scaling = scaling_of(*alpha, module.rank, config.use_rslora);
    return true;
  }

  ParsedAdapter& adapter_;
  Findings& findings_;
  std::map<std::string, std::int32_t> by_path_;
  std::map<const TensorClass*, std::string> copies_;
};

}  // namespace

float scaling_of(double alpha, std::int64_t rank, bool use_rslora) noexcept {
  const auto divisor = static_cast<double>(rank);
  return static_cast<float>(alpha / (use_rslora ? std::sqrt(divisor) : divisor));
}

void group_tensors(ParsedAdapter& adapter) { Grouping(adapter).run(); }

}  // namespace detail
RANKFOLD_NAMESPACE_END
