#include "options.hpp"

#include <CLI/CLI.hpp>

namespace train_adapter {
namespace {

constexpr const char* kAbout =
    "Trains a LoRA adapter on the CPU and puts it to work.\n\n"
    "The byte-level model of example 01 learns to shift every letter by one (?hello> is answered\n"
    "ifmmp), which none of its adapters does. The new adapter is saved as a PEFT directory, "
    "loaded\n"
    "beside the other four, and has to answer 200 prompts that training never saw; exit code 1\n"
    "when fewer than 95 % of the answers are right.";

}  // namespace

std::optional<Options> parse_options(int argc, const char* const* argv, int& exit_code) {
  Options options;
  options.data = TRAIN_ADAPTER_DATA;
  CLI::App app(kAbout, "train_adapter");
  app.set_help_flag("-h,--help", "Show this text");
  app.add_option("--backend", options.backend,
                 "What computes the deltas and their gradients: auto, reference (the CPU), ...\n"
                 "(default: the variable RANKFOLD_BACKEND, else auto)")
      ->type_name("NAME");
  app.add_option("--steps", options.steps, "Steps of training")
      ->check(CLI::Range(1, 1 << 20).description(""))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--batch", options.batch, "Examples a step")
      ->check(CLI::Range(2, 4096).description(""))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--rank", options.rank, "Rank of every module; alpha is twice the rank")
      ->check(CLI::Range(1, 128).description(""))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--learning-rate", options.learning_rate, "The largest step of AdamW")
      ->check(CLI::PositiveNumber.description(""))
      ->type_name("X")
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Of the first weights and of the examples")
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--out", options.out, "Where the adapter is written")
      ->take_last()
      ->type_name("DIR")
      ->capture_default_str();
  app.add_option("--data", options.data, "Where the model and the other adapters are")
      ->type_name("DIR")
      ->check(CLI::Validator(CLI::ExistingDirectory).description(""));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    exit_code = app.exit(error) == 0 ? 0 : 2;
    return std::nullopt;
  }
  return options;
}

}  // namespace train_adapter
