#include "options.hpp"

#include <CLI/CLI.hpp>

namespace swap_under_load {

std::optional<Options> parse_options(int argc, const char* const* argv, int& exit_code) {
  Options options;
  CLI::App app(
      "One thread serves steps of many adapters, another loads, publishes, cancels and unloads\n"
      "adapters meanwhile. Every row of every step is compared, bit by bit, with the revision of\n"
      "the adapter that it asked for; exit code 1 when one is wrong.",
      "swap_under_load");
  app.set_help_flag("-h,--help", "Show this text");
  app.add_option("--seconds", options.seconds,
                 "How long to run; the first quarter without swapping")
      ->check(CLI::Range(2, 86400).description(""))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--backend", options.backend,
                 "What computes the deltas: auto, reference (the CPU), cuda:1, ...\n"
                 "(default: the variable RANKFOLD_BACKEND, else auto)")
      ->type_name("NAME");
  app.add_option("--adapters", options.num_adapters, "Adapters that requests may ask for")
      ->check(CLI::Range(2, 1 << 20).description(""))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--slots", options.num_slots, "Adapters resident at once, at most")
      ->check(CLI::Range(2, 1024).description(""))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Seed of weights, requests and loads")
      ->type_name("N")
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    exit_code = app.exit(error) == 0 ? 0 : 2;
    return std::nullopt;
  }
  return options;
}

}  // namespace swap_under_load
