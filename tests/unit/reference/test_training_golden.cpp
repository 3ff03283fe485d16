// The numbers that others made: Philox's known answers, gradients by autograd in float64.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <string>

#include "kernels/philox.hpp"
#include "rankfold/safetensors.hpp"
#include "training.hpp"

using namespace rankfold;
using namespace rankfold::reference_test;

TEST_CASE("Philox4x32-10: the known answers of Random123") {
  struct Answer {
    std::uint32_t counter[4];
    std::uint32_t key[2];
    std::uint32_t result[4];
  };
  const Answer answers[] = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
       {0xffffffff, 0xffffffff},
       {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       {0xa4093822, 0x299f31d0},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
  for (const Answer& answer : answers) {
    const std::uint64_t key = answer.key[0] | std::uint64_t{answer.key[1]} << 32;
    std::uint32_t values[4][reference::kPhiloxCounters];
    for (std::uint32_t lane = 0; lane < reference::kPhiloxCounters; ++lane) {
      reference::philox4x32_10(answer.counter[0] - lane, answer.counter[1], answer.counter[2],
                               answer.counter[3], key, values);
      for (int l = 0; l < 4; ++l) CHECK(values[l][lane] == answer.result[l]);
    }
    std::uint32_t plain[4];
    plain_philox(answer.counter, answer.key, plain);
    for (int l = 0; l < 4; ++l) CHECK(plain[l] == answer.result[l]);
  }
}

TEST_CASE("dropout's mask: counter, lane, threshold and scale as the contract has them") {
  for (const float p : {0.0f, 0.1f, 0.5f, 0.99f, std::nextafter(1.0f, 0.0f)}) {
    const Dropout dropout{.seed = 0xfeedfacecafef00du, .row_base = 70000, .p = p};
    const reference::DropoutMask mask(dropout, 3);
    CHECK(mask.scale() == 1.0f / (1.0f - p));
    std::uint32_t all[100];
    for (const std::int64_t column : {0, 4, 256}) {
      for (const std::int64_t count : {1, 5, 32, 33, 100}) {
        mask.draw(11, column, count, all);
        for (std::int64_t i = 0; i < count; ++i) {
          std::uint32_t words[4];
          plain_philox({static_cast<std::uint32_t>((column + i) / 4), 70011, 3, 0},
                       {0xcafef00d, 0xfeedface}, words);
          const double threshold = std::floor(static_cast<double>(p) * 4294967296.0);
          REQUIRE((all[i] != 0) == (words[(column + i) % 4] >= threshold));
          REQUIRE((all[i] == 0 || all[i] == 0xffffffff));
        }
      }
    }
  }
}

TEST_CASE("gradients of the golden file: y, dx, dA and dB as autograd has them") {
  const auto file = Safetensors::read(RANKFOLD_SOURCE_DIR "/tests/data/grads.safetensors").value();
  for (int number = 0; number < 3; ++number) {
    CAPTURE(number);
    const std::string prefix = "case" + std::to_string(number) + ".";
    const auto tensor = [&](const char* name) {
      const SafetensorsEntry* entry = file.find(prefix + name);
      REQUIRE(entry != nullptr);
      REQUIRE(entry->dtype == DType::f64);
      std::vector<double> values(entry->bytes / sizeof(double));
      std::memcpy(values.data(), entry->data, entry->bytes);
      return values;
    };
    const auto sizes = [&](const char* name) { return file.find(prefix + name)->sizes; };
    const auto narrow = [](const std::vector<double>& values) {
      Elements result;
      result.resize(DType::f32, static_cast<std::int64_t>(values.size()));
      for (std::size_t i = 0; i < values.size(); ++i) {
        result.set(static_cast<std::int64_t>(i), static_cast<float>(values[i]));
      }
      return result;
    };
    TrainingSpec spec{.batch = {.tokens = sizes("x")[0],
                                .in = sizes("x")[1],
                                .out = {sizes("B")[0]},
                                .slots = 1,
                                .max_rank = static_cast<std::int32_t>(sizes("A")[0])}};
    spec.dx_mode = YMode::overwrite;
    Training training(spec);
    training.batch.slots.assign(training.batch.slots.size(), 0);
    training.batch.x = narrow(tensor("x"));
    training.batch.a[0] = narrow(tensor("A"));
    training.batch.b[0] = narrow(tensor("B"));
    training.batch.entries[0].a = training.batch.a[0].bytes.data();
    training.batch.entries[0].b = training.batch.b[0].bytes.data();
    training.batch.entries[0].scaling = static_cast<float>(tensor("scale")[0]);
    training.y = narrow(tensor("y0"));
    training.dy = narrow(tensor("dy"));
    REQUIRE(training.run_forward().ok());
    REQUIRE(training.run_backward().ok());
    const auto zeros = [&](const char* name) {
      return std::vector<double>(tensor(name).size(), 0.0);
    };
    const auto floats = [&](const std::vector<float>& values) {
      return narrow(std::vector<double>(values.begin(), values.end()));
    };
    CHECK(close(training.y, tensor("y"), tensor("y0")));
    CHECK(close(training.dx, tensor("dx"), zeros("dx")));
    CHECK(close(floats(training.da[0]), tensor("dA"), zeros("dA")));
    CHECK(close(floats(training.db[0]), tensor("dB"), zeros("dB")));
  }
}
