#include "options.hpp"

#include <CLI/CLI.hpp>
#include <cstdio>

#include "report.hpp"

namespace string_tasks {
namespace {

constexpr const char* kAbout =
    "One small language model, several LoRA adapters, one batch.\n\n"
    "Without options: the model answers prompts like ?hello> under four adapters (reverse, upper,\n"
    "sort, rot13) and without any (copy), all in the same batch. Requests come and go, and "
    "halfway\n"
    "one adapter takes another's place. Every answer is checked; exit code 1 when one is wrong.";

constexpr const char* kFooter =
    "Examples:\n"
    "  string_tasks --prompt '?banana>'          all adapters answer your prompt\n"
    "  string_tasks --slots 1                    one slot: adapters take turns in it\n"
    "  string_tasks --backend reference --steps  CPU backend, and what every step holds\n"
    "  string_tasks --model llama --adapter poet=poet --prompt 'Once '\n"
    "                                            a model and a PEFT adapter of your own\n\n"
    "Prompts are bytes as token ids (no tokenizer): byte-level models answer best.";

// Every slot costs memory in each target's table, used or not.
constexpr int kMaxSlots = 4096;

serving::AdapterSource parse_adapter(const std::string& text) {
  const std::size_t equal = text.find('=');
  if (equal == 0 || equal == std::string::npos || equal + 1 == text.size())
    throw CLI::ValidationError("--adapter", "is " + text + "; NAME=DIR is needed");
  return {text.substr(0, equal), text.substr(equal + 1)};
}

}  // namespace

std::optional<Options> parse_options(int argc, const char* const* argv, int& exit_code) {
  Options options;
  options.data = STRING_TASKS_DATA;
  std::string model;
  std::vector<std::string> adapters;

  CLI::App app(kAbout, "string_tasks");
  app.footer(kFooter);
  app.set_help_flag("-h,--help", "Show this text");
  app.add_option("--backend", options.backend,
                 "What computes the deltas: auto, reference (the CPU), cuda:1, ...\n"
                 "(default: the variable RANKFOLD_BACKEND, else auto)")
      ->type_name("NAME");
  app.add_option("--slots", options.num_slots,
                 "Adapters resident at once; with fewer slots than adapters they\n"
                 "replace each other")
      ->check(CLI::Range(1, kMaxSlots).description(""))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--prompt", options.prompts, "A prompt of your own (repeatable)")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  app.add_option("--adapter", adapters,
                 "An adapter of your own: a folder as PEFT saves it (repeatable)")
      ->type_name("NAME=DIR")
      ->allow_extra_args(false);
  app.add_option("--model", model, "A model of your own: a LlamaForCausalLM folder")
      ->type_name("DIR")
      ->check(CLI::Validator(CLI::ExistingDirectory).description(""));
  app.add_option("--new-tokens", options.new_tokens, "Longest answer, in tokens")
      ->check(CLI::Range(1, 1 << 20).description(""))
      ->type_name("N")
      ->capture_default_str();
  app.add_flag("--steps", options.steps, "Print what every step holds");
  app.add_option("--data", options.data, "Where the built-in model and adapters are")
      ->type_name("DIR")
      ->check(CLI::Validator(CLI::ExistingDirectory).description(""));

  try {
    app.parse(argc, argv);
    for (const std::string& text : adapters) {
      options.adapters.push_back(parse_adapter(text));
      for (std::size_t i = 0; i + 1 < options.adapters.size(); ++i)
        if (options.adapters[i].name == options.adapters.back().name)
          throw CLI::ValidationError("--adapter", "names " + options.adapters[i].name + " twice");
    }
    if (!model.empty()) options.model = model;
    if (options.model && options.prompts.empty())
      throw CLI::ValidationError("--model", "needs at least one --prompt");
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help
      exit_code = app.exit(error);
    } else {
      std::fprintf(stderr, "string_tasks: %s\nRun with --help for more information.\n",
                   printable(error.what()).c_str());
      exit_code = 2;
    }
    return std::nullopt;
  }
  return options;
}

}  // namespace string_tasks
