#include "llama/config.hpp"

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

namespace llama {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 32;

// config.json with the file's name at hand, so that every complaint names both.
class ConfigFile {
 public:
  explicit ConfigFile(const std::filesystem::path& path) : path_(path) {
    std::ifstream stream(path);
    if (!stream) throw ModelError(path.string() + ": cannot be read; a model folder has one");
    // Complaints show values, and showing nested ones recurs.
    bool too_deep = false;
    const auto check_depth = [&](int depth, Json::parse_event_t, const Json&) {
      too_deep = too_deep || depth > kMaxDepth;
      return !too_deep;
    };
    json_ = Json::parse(stream, check_depth, /*allow_exceptions=*/false);
    if (too_deep)
      throw ModelError(path.string() + ": is nested deeper than " + std::to_string(kMaxDepth) +
                       " levels");
    if (!json_.is_object()) throw ModelError(path.string() + ": is not a JSON object");
  }

  // Null when the key is absent: a null value says nothing either.
  const Json& at(const char* key) const {
    static const Json nothing;
    const auto found = json_.find(key);
    return found == json_.end() ? nothing : *found;
  }

  [[noreturn]] void refuse(const std::string& key, const Json& value,
                           const std::string& need) const {
    throw ModelError(path_.string() + ": " + key + " is " + value.dump() + "; " + need);
  }

  std::int64_t count(const char* key) const {
    constexpr std::int64_t kMost = std::int64_t{1} << 30;  // products of two stay inside 64 bits
    const Json& value = at(key);
    if (!value.is_number_integer() || value < 1 || value > kMost)
      refuse(key, value, "a whole number from 1 to 2^30 is needed");
    return value.get<std::int64_t>();
  }
  std::int64_t count_or(const char* key, std::int64_t otherwise) const {
    return at(key).is_null() ? otherwise : count(key);
  }

  float positive(const std::string& key, const Json& value) const {
    const double number = value.is_number() ? value.get<double>() : 0.0;
    constexpr double kLeast = std::numeric_limits<float>::min();
    constexpr double kMost = std::numeric_limits<float>::max();
    if (!(number >= kLeast && number <= kMost))
      refuse(key, value, "it must be over 0, and a number that float32 holds");
    return static_cast<float>(number);
  }

  // Absent, null or false.
  void must_be_off(const char* key) const {
    const Json& value = at(key);
    if (!value.is_null() && value != false)
      refuse(key, value, "this example runs models without it only");
  }

 private:
  std::filesystem::path path_;
  Json json_;
};

void check_architecture(const ConfigFile& file) {
  const Json& names = file.at("architectures");
  if (names != Json::array({"LlamaForCausalLM"}))
    file.refuse("architectures", names, "this example runs [\"LlamaForCausalLM\"] only");
  const Json& act = file.at("hidden_act");
  if (!act.is_null() && act != "silu")
    file.refuse("hidden_act", act, "this example knows \"silu\" only");
  file.must_be_off("attention_bias");
  file.must_be_off("mlp_bias");
  file.must_be_off("quantization_config");
}

// `rope_parameters` {rope_type, rope_theta} of newer files, `rope_theta` beside `rope_scaling` of
// older ones. Scaled frequencies would need their own formulas, so they are refused.
float read_rope_theta(const ConfigFile& file) {
  const Json& scaling = file.at("rope_scaling");
  if (!scaling.is_null())
    file.refuse("rope_scaling", scaling, "this example knows the default rope only");
  const Json& parameters = file.at("rope_parameters");
  if (parameters.is_null()) {
    const Json& theta = file.at("rope_theta");
    return theta.is_null() ? 10000.0f : file.positive("rope_theta", theta);
  }
  if (!parameters.is_object())
    file.refuse("rope_parameters", parameters, "a JSON object is needed");
  for (const auto& [key, value] : parameters.items()) {
    const bool known = (key == "rope_type" && value == "default") || key == "rope_theta" ||
                       (key == "partial_rotary_factor" && value == 1.0);
    if (!known)
      file.refuse("rope_parameters." + key, value,
                  "this example knows rope_type \"default\" with rope_theta only");
  }
  if (!parameters.contains("rope_theta"))
    file.refuse("rope_parameters", parameters, "rope_theta is needed in it");
  return file.positive("rope_parameters.rope_theta", parameters["rope_theta"]);
}

std::vector<std::int32_t> read_stop_tokens(const ConfigFile& file) {
  const Json& value = file.at("eos_token_id");
  if (value.is_null()) return {};
  const Json list = value.is_array() ? value : Json::array({value});
  std::vector<std::int32_t> tokens;
  for (const Json& token : list) {
    if (!token.is_number_integer() || token < 0 || token > INT32_MAX)
      file.refuse("eos_token_id", value, "a token id or a list of them is needed");
    tokens.push_back(token.get<std::int32_t>());
  }
  return tokens;
}

}  // namespace

Config read_config(const std::filesystem::path& folder) {
  const ConfigFile file(folder / "config.json");
  check_architecture(file);

  Config config;
  config.vocab_size = file.count("vocab_size");
  config.hidden_size = file.count("hidden_size");
  config.intermediate_size = file.count("intermediate_size");
  config.num_layers = file.count("num_hidden_layers");
  config.num_heads = file.count("num_attention_heads");
  config.num_kv_heads = file.count_or("num_key_value_heads", config.num_heads);
  config.head_dim = file.count_or("head_dim", config.hidden_size / config.num_heads);
  config.max_positions = file.count_or("max_position_embeddings", 2048);
  config.rope_theta = read_rope_theta(file);
  config.stop_tokens = read_stop_tokens(file);

  const Json& eps = file.at("rms_norm_eps");
  if (!eps.is_null()) config.rms_norm_eps = file.positive("rms_norm_eps", eps);
  const Json& tied = file.at("tie_word_embeddings");
  if (!tied.is_null() && !tied.is_boolean())
    file.refuse("tie_word_embeddings", tied, "true or false is needed");
  config.tie_word_embeddings = tied == true;

  if (config.num_heads % config.num_kv_heads != 0)
    file.refuse("num_key_value_heads", file.at("num_key_value_heads"),
                "it must divide num_attention_heads, " + std::to_string(config.num_heads));
  if (config.head_dim == 0 || config.head_dim % 2 != 0)
    file.refuse("head_dim", config.head_dim, "rope turns pairs of columns: it must be even");
  return config;
}

}  // namespace llama
