// The whole pass: gradients of the adapter against differences of the loss, logits against those of
// serving, and a short run.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <rankfold/rankfold.hpp>
#include <set>

#include "evaluate.hpp"
#include "llama/model.hpp"
#include "llama/targets.hpp"
#include "train/trainer.hpp"

namespace {

using llama::Matrix;

const std::filesystem::path kData = TASKS_DATA;

struct Rig {
  llama::Model base = llama::Model::load(kData / "base");
  llama::Targets targets{base.config(), base.weights()};
  train::Model model{base.config(), base.weights()};

  train::Adapter adapter(std::int32_t rank, std::uint64_t seed) const {
    return {rankfold::backend(), targets.specs(), {rank, 2.0 * rank}, seed};
  }
};

// B is zero at first, which would hide the gradient of A.
void fill_all(train::Adapter& adapter, float bound) {
  train::Random random(77);
  for (float& value : adapter.parameters()) value = random.between(-bound, bound);
  adapter.upload();
}

train::Batch some_batch() {
  train::Batch batch;
  for (const char* input : {"abc", "zebra", "qwertyuiop", "hello"})
    train::add_example(input, train::shifted(input), batch);
  return batch;
}

}  // namespace

TEST_CASE("training: the gradient of every module against differences of the loss") {
  const Rig rig;
  train::Adapter adapter = rig.adapter(3, 5);
  fill_all(adapter, 0.05f);
  const train::Batch batch = some_batch();
  train::LoraPass pass(adapter, 200);
  const auto loss = [&] {
    adapter.upload();
    return rig.model.forward_backward(batch, 1.0f, pass);
  };
  (void)loss();
  const std::vector<float> gradients(pass.gradients().begin(), pass.gradients().end());
  REQUIRE(gradients.size() == adapter.parameters().size());

  // Along the gradient of one matrix the loss changes by its norm: a wrong element or a wrong sign
  // makes it less.
  const auto check_matrix = [&](std::size_t begin, std::size_t end) {
    double norm = 0;
    for (std::size_t i = begin; i < end; ++i)
      norm += static_cast<double>(gradients[i]) * gradients[i];
    norm = std::sqrt(norm);
    REQUIRE(norm > 0);
    // So long that the loss changes by much more than float32 rounds it, so short that it is
    // nearly straight.
    const double step = std::min(0.05, 0.02 / norm);
    const std::vector<float> kept(adapter.parameters().begin(), adapter.parameters().end());
    const auto moved = [&](double by) {
      for (std::size_t i = begin; i < end; ++i)
        adapter.parameters()[i] = kept[i] + static_cast<float>(by * gradients[i] / norm);
      const double result = loss();
      std::copy(kept.begin(), kept.end(), adapter.parameters().begin());
      return result;
    };
    const double slope = (moved(step) - moved(-step)) / (2 * step);
    CHECK(slope == doctest::Approx(norm).epsilon(0.02));
  };
  for (const train::Adapter::Pair& pair : adapter.pairs()) {
    CAPTURE(pair.target);
    CAPTURE(pair.slice);
    check_matrix(pair.a, pair.b);
    check_matrix(pair.b, pair.b + static_cast<std::size_t>(pair.out) * 3);
  }
}

TEST_CASE("training: logits are those of serving, with the adapter saved and loaded") {
  const Rig rig;
  train::Adapter adapter = rig.adapter(4, 6);
  fill_all(adapter, 0.05f);
  const auto folder = std::filesystem::temp_directory_path() / "rankfold_train_adapter_test";
  adapter.save(folder, "base");

  serving::AdapterStore store(rankfold::backend(), rig.targets.specs(), {{"new", folder}}, 1);
  llama::Deltas deltas(rankfold::backend(), store.tables(), 200);
  const auto slot = store.pin("new", deltas.stream(), serving::AdapterStore::Upload::wait).value();
  const train::Batch batch = some_batch();
  train::LoraPass pass(adapter, 200);
  const Matrix trained = rig.model.logits(batch, pass);

  for (const std::int32_t use : {slot, std::int32_t{-1}}) {
    std::vector<llama::KvCache> caches(batch.sequences.size(),
                                       llama::KvCache(rig.base.config(), train::kMostRows));
    llama::Batch served;
    for (std::size_t i = 0; i < caches.size(); ++i) {
      const auto& [first, count] = batch.sequences[i];
      served.add(caches[i],
                 std::span(batch.tokens)
                     .subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count)),
                 use, llama::Logits::none);
    }
    served.logit_rows = batch.loss_rows;
    const Matrix logits = rig.base.forward(served, deltas);
    if (use == slot)
      CHECK((trained - logits).norm() <= 1e-5f * logits.norm());
    else
      CHECK((trained - logits).norm() > 0.01f * logits.norm());
  }
  store.unpin_all();
  std::filesystem::remove_all(folder);
}

TEST_CASE("training: what is held out is never an example, and lengths are even") {
  const std::vector<std::string> held_out = train::held_out_inputs(200);
  CHECK(held_out == train::held_out_inputs(200));
  CHECK(std::set<std::string>(held_out.begin(), held_out.end()).size() == 200);
  std::array<int, 11> by_length{};
  for (const std::string& input : held_out) ++by_length.at(input.size());
  for (std::size_t length = 3; length <= 10; ++length) CHECK(by_length[length] == 25);

  // All inputs of three letters but one held out: that one comes at once, the others never.
  std::vector<std::string> most;
  for (char a = 'a'; a <= 'z'; ++a)
    for (char b = 'a'; b <= 'z'; ++b)
      for (char c = 'a'; c <= 'z'; ++c)
        if (std::string word{a, b, c}; word != "cab") most.push_back(word);
  train::Examples examples(1, most);
  std::set<std::string> drawn;
  for (int i = 0; i < 400; ++i)
    if (const std::string input = examples.next_input(); input.size() == 3) drawn.insert(input);
  for (const std::string& input : drawn) CHECK(input == "cab");
  CHECK(train::shifted("azhello") == "baifmmp");
}

TEST_CASE("training: AdamW's first steps, from the formula in float64") {
  std::vector<float> parameters = {1, -2};
  const float gradients[2][2] = {{0.3f, -0.4f}, {3, 4}};  // the second is longer than 1: clipped
  train::AdamW optimizer(2, {.weight_decay = 0.1f});
  double m[2] = {}, v[2] = {}, p[2] = {1, -2};
  for (int step = 1; step <= 2; ++step) {
    const auto& g = gradients[step - 1];
    optimizer.step(parameters, g, 0.01f);
    const double norm = std::hypot(g[0], g[1]);
    for (int i = 0; i < 2; ++i) {
      const double clipped = g[i] / std::max(1.0, norm);
      m[i] = 0.9 * m[i] + 0.1 * clipped;
      v[i] = 0.98 * v[i] + 0.02 * clipped * clipped;
      const double direction =
          m[i] / (1 - std::pow(0.9, step)) / (std::sqrt(v[i] / (1 - std::pow(0.98, step))) + 1e-8);
      p[i] -= 0.01 * (direction + 0.1 * p[i]);
      CHECK(parameters[static_cast<std::size_t>(i)] == doctest::Approx(p[i]).epsilon(1e-5));
    }
  }
}

TEST_CASE("training: a short run lowers the loss, and a seed repeats it") {
  const Rig rig;
  const auto train_once = [&](std::uint64_t seed) {
    train::Adapter adapter = rig.adapter(8, seed);
    train::Examples examples(seed, train::held_out_inputs(200));
    train::Trainer trainer(rig.model, adapter, examples, {.num_steps = 14, .num_sequences = 16});
    return trainer.run();
  };
  const std::vector<double> losses = train_once(1);
  REQUIRE(losses.size() == 14);
  MESSAGE("loss " << losses.front() << " to " << losses.back());
  CHECK(losses.back() < 0.5 * losses.front());
  CHECK(train_once(1) == losses);
  CHECK(train_once(2) != losses);
}
