// Trains an adapter with rankfold's forward and backward, saves it, and serves it beside others.
// README.md tells the story; train/ is the training, evaluate.* the proof.
#include <cstdio>
#include <exception>
#include <string>

#include "evaluate.hpp"
#include "options.hpp"
#include "train/trainer.hpp"

namespace {

using namespace train_adapter;

constexpr std::int64_t kNumPrompts = 200;
constexpr double kMostBefore = 5;   // percent
constexpr double kLeastAfter = 95;  // percent

// One line, written over again and again.
void print_progress(const train::Progress& progress) {
  constexpr int kWidth = 30;
  static double shown = -1;
  const bool is_last = progress.step == progress.num_steps;
  if (!is_last && progress.seconds - shown < 0.25) return;
  shown = progress.seconds;
  const double done = static_cast<double>(progress.step) / static_cast<double>(progress.num_steps);
  const std::string bar(static_cast<std::size_t>(done * kWidth), '#');
  const auto left = static_cast<long long>(progress.seconds / done * (1 - done) + 0.5);
  std::printf("\r  [%-*s] step %lld of %lld, loss %.4f, %lld:%02lld left ", kWidth, bar.c_str(),
              static_cast<long long>(progress.step), static_cast<long long>(progress.num_steps),
              progress.loss, left / 60, left % 60);
  if (is_last) std::printf("\n");
  std::fflush(stdout);
}

rankfold::LoraBackend& choose_backend(const Options& options) {
  if (!options.backend.empty())
    rankfold::throw_if_error(rankfold::registry().choose(options.backend.c_str()));
  return rankfold::backend();
}

int run(const Options& options) {
  const auto base = llama::Model::load(options.data / "base");
  const llama::Targets targets(base.config(), base.weights());
  rankfold::LoraBackend& backend = choose_backend(options);
  const std::vector<std::string> held_out = train::held_out_inputs(kNumPrompts);
  const Evaluation before = evaluate(backend, base, targets, options.data, {}, held_out);

  train::Adapter adapter(backend, targets.specs(), {options.rank, 2.0 * options.rank},
                         options.seed);
  std::printf("backend %s, rank %d, %zu modules, %zu weights to train, %lld examples a step\n",
              backend.name(), options.rank, adapter.pairs().size(), adapter.parameters().size(),
              static_cast<long long>(options.batch));
  const train::Model model(base.config(), base.weights());
  train::Examples examples(options.seed, held_out);
  train::Trainer trainer(model, adapter, examples,
                         {.num_steps = options.steps,
                          .num_sequences = options.batch,
                          .learning_rate = options.learning_rate});
  double seconds = 0;
  trainer.run([&](const train::Progress& progress) {
    print_progress(progress);
    seconds = progress.seconds;
  });
  adapter.save(options.out, "base");
  std::printf("trained in %.0f s, saved in %s\n\n", seconds, options.out.string().c_str());

  const Evaluation after = evaluate(backend, base, targets, options.data, options.out, held_out);
  print_table(before, after);
  std::printf("\n  the other adapters in the same batches: %lld of %lld right\n",
              static_cast<long long>(after.others.right),
              static_cast<long long>(after.others.prompts));
  const bool good = before.all.percent() < kMostBefore && after.all.percent() >= kLeastAfter &&
                    after.others.right == after.others.prompts;
  if (!good)
    std::printf("  wanted: less than %.0f %% before, %.0f %% or more after, all of the others\n",
                kMostBefore, kLeastAfter);
  return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  int exit_code = 0;
  try {
    const std::optional<Options> options = parse_options(argc, argv, exit_code);
    return options ? run(*options) : exit_code;
  } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "train_adapter: %s\n", error.what());
    return 2;
  }
}
