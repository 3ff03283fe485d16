// Model folders that this example cannot run are refused, and the text names what is in the way.
#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "support.hpp"

namespace golden {
namespace {

using Json = nlohmann::json;

Json good_config() {
  std::ifstream stream(kPeftLlama / "base" / "config.json");
  return Json::parse(stream);
}

// What read_config says of a config: "" when it is taken.
std::string refusal(const std::string& text) {
  const ScratchFolder folder("config");
  std::ofstream(folder.path() / "config.json") << text;
  try {
    (void)llama::read_config(folder.path());
  } catch (const llama::ModelError& error) {
    return error.what();
  }
  return "";
}

struct Change {
  const char* key;
  Json value;
  const char* named;  ///< must stand in the text
};

TEST_CASE("config: what would change the mathematics is refused by its key") {
  const std::vector<Change> changes = {
      {"architectures", Json::array({"MistralForCausalLM"}), "MistralForCausalLM"},
      {"architectures", nullptr, "architectures"},
      {"hidden_act", "gelu", "hidden_act"},
      {"attention_bias", true, "attention_bias"},
      {"mlp_bias", true, "mlp_bias"},
      {"quantization_config", {{"bits", 4}}, "quantization_config"},
      {"rope_scaling", {{"type", "linear"}, {"factor", 2}}, "rope_scaling"},
      {"rope_parameters", {{"rope_type", "llama3"}, {"rope_theta", 1e4}}, "rope_type"},
      {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e4}, {"factor", 8}}, "factor"},
      {"rope_parameters", {{"rope_type", "default"}}, "rope_theta"},
      {"rope_parameters",
       {{"rope_theta", 1e4}, {"partial_rotary_factor", 0.5}},
       "partial_rotary_factor"},
      {"hidden_size", 0, "hidden_size"},
      {"hidden_size", "64", "hidden_size"},
      {"vocab_size", -1, "vocab_size"},
      {"num_hidden_layers", 2.5, "num_hidden_layers"},
      {"num_key_value_heads", 3, "num_key_value_heads"},
      {"head_dim", 15, "head_dim"},
      {"rms_norm_eps", 0, "rms_norm_eps"},
      {"rms_norm_eps", 1e300, "rms_norm_eps"},
      {"rope_parameters", {{"rope_theta", 1e300}}, "rope_parameters.rope_theta"},
      {"rope_parameters", {{"rope_theta", 1e-300}}, "rope_parameters.rope_theta"},
      {"eos_token_id", "x", "eos_token_id"},
      {"tie_word_embeddings", 1, "tie_word_embeddings"},
  };
  CHECK(refusal(good_config().dump()) == "");
  for (const Change& change : changes) {
    Json config = good_config();
    config[change.key] = change.value;
    const std::string text = refusal(config.dump());
    CAPTURE(change.key);
    CAPTURE(text);
    CHECK(text.find(change.named) != std::string::npos);
    CHECK(text.find("config.json") != std::string::npos);
  }
  CHECK(refusal("{").find("not a JSON object") != std::string::npos);
  const std::string deep = std::string(300000, '[') + std::string(300000, ']');
  CHECK(refusal("{\"architectures\": " + deep + "}").find("deeper than") != std::string::npos);
  CHECK(refusal("[]").find("not a JSON object") != std::string::npos);
}

TEST_CASE("config: the older spelling of rope, and keys that say nothing") {
  Json config = good_config();
  config.erase("rope_parameters");
  config["rope_theta"] = 5000.0;
  config["rope_scaling"] = nullptr;
  config.erase("head_dim");
  config["eos_token_id"] = {3, 4};
  const ScratchFolder folder("rope");
  std::ofstream(folder.path() / "config.json") << config.dump();
  const llama::Config read = llama::read_config(folder.path());
  CHECK(read.rope_theta == 5000.0f);
  CHECK(read.head_dim == 16);
  CHECK(read.stop_tokens == Tokens{3, 4});
}

}  // namespace
}  // namespace golden
