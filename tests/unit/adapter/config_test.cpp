// adapter_config.json: what it may hold, and what decides scaling and rank.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "files.hpp"

using namespace adapter_tests;  // NOLINT
using rankfold::AdapterOptions;
using rankfold::Finding;
using rankfold::Status;
using rankfold::StatusCode;

namespace {

// The first refusal of an adapter of one module with this config.
Status status_of(const std::string& text, std::int64_t rank = 4,
                 const AdapterOptions& options = {}) {
  const auto file = open(text, pair("model.layers.3.q_proj", rank, 5, 6), options);
  return file.ok() ? file->status() : file.status();
}

float scaling_of(const std::string& text, std::int64_t rank = 4) {
  const auto file = open(text, pair("model.layers.3.q_proj", rank, 5, 6));
  REQUIRE_MESSAGE(file.ok(), file.status().message());
  REQUIRE_MESSAGE(file->status().ok(), file->status().message());
  return file->modules()[0].scaling;
}

}  // namespace

TEST_CASE("H1: rsLoRA divides by the root of the rank") {
  CHECK(scaling_of(config("\"use_rslora\":true", "16", "32"), 16) == 8.0f);
  CHECK(scaling_of(config("\"use_rslora\":false", "16", "32"), 16) == 2.0f);
  CHECK(scaling_of(config("\"use_rslora\":null", "16", "32"), 16) == 2.0f);
  CHECK(scaling_of(config("\"use_rslora\":true", "3", "5"), 3) ==
        static_cast<float>(5 / std::sqrt(3.0)));
}

TEST_CASE("H2: rank and alpha by pattern") {
  const std::string text = config(
      "\"rank_pattern\":{\"layers.3.q_proj\":32},\"alpha_pattern\":{\"layers.3.q_proj\":128}", "16",
      "32");
  auto tensors = pair("model.layers.3.q_proj", 32, 5, 6);
  for (const Tensor& tensor : pair("model.layers.2.q_proj", 16, 5, 6)) tensors.push_back(tensor);
  const auto file = open(text, tensors);
  REQUIRE(file.ok());
  REQUIRE_MESSAGE(file->status().ok(), file->status().message());
  REQUIRE(file->modules().size() == 2);
  CHECK(file->modules()[0].scaling == 4.0f);
  CHECK(file->modules()[0].rank == 32);
  CHECK(file->modules()[1].scaling == 2.0f);
  CHECK(file->modules()[1].rank == 16);
}

TEST_CASE("H2: the first pattern as written wins, not the alphabetical first") {
  CHECK(scaling_of(config("\"alpha_pattern\":{\"q_proj\":16,\"layers.3.q_proj\":32}")) == 4.0f);
  CHECK(scaling_of(config("\"alpha_pattern\":{\"layers.3.q_proj\":32,\"q_proj\":16}")) == 8.0f);
}

TEST_CASE("H3: alpha is divided by the rank") {
  CHECK(scaling_of(config("", "8", "16"), 8) == 2.0f);
  CHECK(scaling_of(config("", "4", "0.5")) == 0.125f);
  CHECK(scaling_of(config("", "4", "0")) == 0.0f);
}

TEST_CASE("H6: the scaling is a float32 of its own, one rounding of the exact quotient") {
  CHECK(scaling_of(config("", "3", "1"), 3) == static_cast<float>(1.0 / 3.0));
  // Rounding alpha to float first would give another float.
  CHECK(scaling_of(config("", "7", "16777217"), 7) == static_cast<float>(16777217.0 / 7));
}

TEST_CASE("H7: hidden wrong values of r and alpha are typed errors that name the key") {
  for (const char* rank : {"0", "-4", "\"4\"", "4.0", "1e1", "null", "true", "[4]", "2147483648",
                           "99999999999999999999", "1e308"}) {
    CAPTURE(std::string(rank));
    check_error(status_of(config("", rank)), StatusCode::malformed_file, {"r is"});
  }
  check_error(status_of(config("", "")), StatusCode::malformed_file, {"r is missing"});
  for (const char* alpha : {"\"8\"", "null", "true", "{}", "-1", "-0.5", "1e39", "1e308"}) {
    CAPTURE(std::string(alpha));
    check_error(status_of(config("", "4", alpha)), StatusCode::malformed_file, {"lora_alpha is"});
  }
  check_error(status_of(config("", "4", "")), StatusCode::malformed_file,
              {"lora_alpha is missing"});
  // JSON has no such literals, and what overflows is no number either.
  for (const char* alpha : {"NaN", "nan", "Infinity", "-Infinity", "1e999", "-1e999", "0x8"}) {
    CAPTURE(std::string(alpha));
    check_error(status_of(config("", "4", alpha)), StatusCode::malformed_file,
                {"adapter_config.json"});
  }
  for (const char* pattern :
       {"\"rank_pattern\":{\"q_proj\":0}", "\"rank_pattern\":{\"q_proj\":\"4\"}",
        "\"rank_pattern\":{\"q_proj\":4.5}", "\"rank_pattern\":[1]",
        "\"alpha_pattern\":{\"q_proj\":null}", "\"alpha_pattern\":{\"q_proj\":-1}",
        "\"alpha_pattern\":\"q_proj\""}) {
    CAPTURE(std::string(pattern));
    check_error(status_of(config(pattern)), StatusCode::malformed_file, {"_pattern "});
  }
}

TEST_CASE("config: the rank of the tensors and of the config must agree") {
  check_error(status_of(config(), 8), StatusCode::malformed_file,
              {"'model.layers.3.q_proj'", "rank 8", "rank 4"});
  check_error(status_of(config("\"rank_pattern\":{\"q_proj\":8}")), StatusCode::malformed_file,
              {"rank 4", "rank 8"});
  CHECK(status_of(config("\"rank_pattern\":{\"q_proj\":8}"), 8).ok());
}

TEST_CASE("config: text that is not one JSON object of unique names") {
  struct Malformed {
    std::string text;
    const char* part;
  };
  for (const Malformed& malformed : {
           Malformed{"", "invalid JSON"},
           Malformed{"[]", "array"},
           Malformed{"3", "must be an object"},
           Malformed{"{", "invalid JSON"},
           Malformed{"\xef\xbb\xbf{}", "byte order mark"},
           Malformed{std::string("{}\0", 3), "NUL"},
           Malformed{"{\"a\\u0000\":1}", "NUL"},
           Malformed{config("\"r\":4"), "'r' appears twice"},
           Malformed{config("\"\\u0072\":4"), "'r' appears twice"},
           Malformed{config("\"rank_pattern\":{\"a\":1,\"a\":2}"), "'a' appears twice"},
           Malformed{config("\"x\":[[{\"a\":1,\"a\":2}]]"), "'a' appears twice"},
           Malformed{config("\"x\":\"\xff\""), "UTF-8"},
           Malformed{"{\"a\":" + std::string(40, '[') + std::string(40, ']') + "}", "deeper"},
           Malformed{"{\"a\":" + std::string(1000000, '['), "deeper"},
           Malformed{config("\"x\":\"" + std::string(4 << 20, 'x') + "\""), "4194304"},
           Malformed{"{'r':4}", "invalid JSON"},
           Malformed{"{\"r\":4,}", "invalid JSON"},
       }) {
    CAPTURE(malformed.text.substr(0, 80));
    const auto file = open(malformed.text, pair("m", 4, 5, 6));
    REQUIRE(!file.ok());
    check_error(file.status(), StatusCode::malformed_file, {"adapter_config.json", malformed.part});
  }
}

TEST_CASE("config: what changes the mathematics is refused by name") {
  struct Refused {
    const char* key;
    const char* value;
  };
  for (const Refused& refused : {Refused{"use_dora", "true"},
                                 Refused{"modules_to_save", "[\"lm_head\"]"},
                                 Refused{"use_qalora", "true"},
                                 Refused{"alora_invocation_tokens", "[1,2]"},
                                 Refused{"trainable_token_indices", "[3]"},
                                 Refused{"trainable_token_indices", "{\"embed_tokens\":[3]}"},
                                 Refused{"layer_replication", "[[0,4],[2,5]]"},
                                 Refused{"bias", "\"all\""},
                                 Refused{"bias", "\"lora_only\""},
                                 Refused{"bias", "true"},
                                 Refused{"init_lora_weights", "\"pissa\""},
                                 Refused{"init_lora_weights", "\"pissa_niter_4\""},
                                 Refused{"init_lora_weights", "\"olora\""},
                                 Refused{"init_lora_weights", "\"corda\""},
                                 Refused{"init_lora_weights", "\"loftq\""},
                                 Refused{"init_lora_weights", "\"eva\""},
                                 Refused{"megatron_config", "{\"a\":1}"},
                                 Refused{"loftq_config", "{\"loftq_bits\":4}"},
                                 Refused{"kasa_config", "{\"beta\":1}"},
                                 Refused{"use_bdlora", "{\"nblocks\":2}"},
                                 Refused{"arrow_config", "{\"top_k\":3}"},
                                 Refused{"ensure_weight_tying", "true"}}) {
    CAPTURE(std::string(refused.key));
    check_error(status_of(config("\"" + std::string(refused.key) + "\":" + refused.value)),
                StatusCode::unsupported, {refused.key});
  }
  for (const char* type : {"\"LOHA\"", "\"lora\"", "\"ADALORA\"", "null", "1"}) {
    check_error(status_of("{\"peft_type\":" + std::string(type) + ",\"r\":4,\"lora_alpha\":8}"),
                StatusCode::unsupported, {"peft_type", "LORA"});
  }
  check_error(status_of("{\"r\":4,\"lora_alpha\":8}"), StatusCode::malformed_file, {"peft_type"});
}

TEST_CASE(
    "config: known keys are inert whatever they say, and the refused ones when they are off") {
  for (const char* pair_text : {"\"base_model_name_or_path\":\"x\"",
                                "\"revision\":\"main\"",
                                "\"task_type\":\"CAUSAL_LM\"",
                                "\"peft_version\":\"0.21.0\"",
                                "\"inference_mode\":true",
                                "\"auto_mapping\":{\"a\":1}",
                                "\"lora_dropout\":0.5",
                                "\"target_modules\":[\"q_proj\"]",
                                "\"target_modules\":\".*q\"",
                                "\"exclude_modules\":[\"k\"]",
                                "\"layers_to_transform\":[1]",
                                "\"layers_pattern\":\"h\"",
                                "\"fan_in_fan_out\":true",
                                "\"megatron_core\":\"megatron.core\"",
                                "\"qalora_group_size\":16",
                                "\"init_lora_weights\":true",
                                "\"init_lora_weights\":false",
                                "\"init_lora_weights\":\"gaussian\"",
                                "\"use_dora\":false",
                                "\"modules_to_save\":null",
                                "\"modules_to_save\":[]",
                                "\"use_qalora\":false",
                                "\"layer_replication\":null",
                                "\"bias\":\"none\"",
                                "\"rank_pattern\":null",
                                "\"alpha_pattern\":{}",
                                "\"target_parameters\":null"}) {
    CAPTURE(std::string(pair_text));
    const auto file = open(config(pair_text), pair("m", 4, 5, 6));
    REQUIRE(file.ok());
    CHECK_MESSAGE(file->status().ok(), file->status().message());
    CHECK(file->findings().empty());
  }
}

TEST_CASE("config: an unknown key is inert and listed, allowed and listed, or an error") {
  for (const char* value : {"null", "false", "{}", "[]"}) {
    CAPTURE(std::string(value));
    const auto file = open(config("\"future_key\":" + std::string(value)), pair("m", 4, 5, 6));
    REQUIRE(file.ok());
    CHECK(file->status().ok());
    REQUIRE(file->findings().size() == 1);
    CHECK(file->findings()[0].severity == Finding::Severity::note);
    CHECK(std::string(file->findings()[0].subject) == "future_key");
  }
  const char* const allowed[] = {"another", "future_key"};
  AdapterOptions options;
  options.num_allowed_keys = 2;
  options.allowed_keys = allowed;
  for (const char* value : {"true", "0", "\"\"", "[null]", "{\"a\":null}", "1.5"}) {
    CAPTURE(std::string(value));
    const std::string text = config("\"future_key\":" + std::string(value));
    check_error(status_of(text), StatusCode::unsupported, {"'future_key'"});
    CHECK(status_of(text, 4, options).ok());
    CHECK(open(text, pair("m", 4, 5, 6), options)->findings().size() == 1);
  }
  // Allowing is for unknown keys: what is known to change the mathematics stays refused.
  const char* const dora[] = {"use_dora"};
  options.num_allowed_keys = 1;
  options.allowed_keys = dora;
  check_error(status_of(config("\"use_dora\":true"), 4, options), StatusCode::unsupported,
              {"use_dora"});
}

TEST_CASE("config: flags must be flags, options must be counted") {
  for (const char* key : {"use_rslora", "lora_bias"}) {
    check_error(status_of(config("\"" + std::string(key) + "\":1")), StatusCode::malformed_file,
                {key});
  }
  AdapterOptions options;
  options.num_allowed_keys = 1;
  check_error(status_of(config(), 4, options), StatusCode::invalid_argument, {"num_allowed_keys"});
}

TEST_CASE("config: a report is complete, the status is its first refusal") {
  const auto file = open(config("\"use_dora\":true,\"bias\":\"all\"", "8"), pair("m", 4, 5, 6));
  REQUIRE(file.ok());
  CHECK(file->modules().size() == 1);
  REQUIRE(file->findings().size() == 3);  // use_dora, bias, the rank
  check_error(file->status(), StatusCode::unsupported, {"use_dora"});
  CHECK(std::string(file->status().message()) == file->findings()[0].text);
  CHECK(file->findings()[2].code == StatusCode::malformed_file);
}
