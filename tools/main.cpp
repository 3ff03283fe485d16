// The command line of `rankfold`: what it accepts, its help, and from an exception to an exit code.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <functional>
#include <iterator>

#include "command.hpp"
#include "rankfold/version.hpp"

namespace rankfold::tools {
namespace {

constexpr const char* kDescription =
    "rankfold: LoRA operations for inference and training engines.\n"
    "This command shows what this machine can run, looks into adapters, checks the\n"
    "operations against their definition, and times them.";

constexpr const char* kFooter =
    "Start with:\n"
    "  rankfold list                 which backends work here\n"
    "  rankfold inspect MY_ADAPTER   what a PEFT adapter holds, and whether rankfold takes it\n"
    "  rankfold check                whether the operations compute the right thing here\n"
    "  rankfold COMMAND --help       options and examples of one command\n\n"
    "Environment:\n"
    "  RANKFOLD_BACKEND   auto (default) | NAME | NAME:DEVICE, for example reference or cuda:1\n"
    "  RANKFOLD_TUNING    a file that `rankfold tune` wrote\n"
    "  NO_COLOR           no colours on a terminal\n\n"
    "Exit codes:\n"
    "  0  done\n"
    "  1  a conformance case or a benchmark's result is wrong, or the output cannot be written\n"
    "  2  wrong command line, a backend that cannot be used, or a file that cannot be read\n"
    "  3  a file is malformed, or an adapter would be refused\n";

constexpr const char* kBackendHelp =
    "auto, NAME or NAME:DEVICE; beats RANKFOLD_BACKEND (see `rankfold list`)";

std::function<int(Output&)> add_list(CLI::App& app) {
  auto options = std::make_shared<ListOptions>();
  CLI::App* command = app.add_subcommand("list", "Backends: built, usable, why not, devices");
  command->add_flag("--json", options->json, "One JSON document on stdout");
  command->add_flag("--kernels", options->kernels,
                    "Also every strategy of each usable backend: for which problems, and its "
                    "configurations in the order in which they are considered");
  command->footer(
      "Says which backend `auto` takes and why a better one is passed over, and what\n"
      "RANKFOLD_BACKEND selects. Exit code 2 when the variable asks for one that cannot be "
      "used.\n\n"
      "Examples:\n"
      "  rankfold list\n"
      "  rankfold list --kernels\n"
      "  RANKFOLD_BACKEND=cuda:1 rankfold list\n");
  return [options](Output& out) { return run_list(*options, out); };
}

std::function<int(Output&)> add_inspect(CLI::App& app) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command = app.add_subcommand(
      "inspect", "An adapter: modules, ranks, scalings, bytes, and what would be refused");
  command
      ->add_option("DIR_OR_FILE", options->path,
                   "A PEFT directory (adapter_config.json, adapter_model.safetensors), the "
                   "safetensors file in it, or any other safetensors file")
      ->required();
  command->add_flag("--json", options->json, "One JSON document on stdout");
  command->footer(
      "A safetensors file with no adapter_config.json beside it is no adapter: its tensors and\n"
      "metadata are listed. No model is needed, so whether modules fit one is not looked at.\n"
      "Exit code 3 when the file is malformed or the adapter would be refused; the report is\n"
      "printed all the same.\n\n"
      "Examples:\n"
      "  rankfold inspect my_adapter/\n"
      "  rankfold inspect my_adapter/ --json\n"
      "  rankfold inspect model.safetensors\n");
  return [options](Output& out) { return run_inspect(*options, out); };
}

std::function<int(Output&)> add_check(CLI::App& app) {
  auto options = std::make_shared<CheckOptions>();
  CLI::App* command = app.add_subcommand(
      "check", "Run the conformance cases on this machine, or replay one case file");
  command->add_option("--backend", options->backend, kBackendHelp);
  command->add_option("--seed", options->seed,
                      "Seed of the random data, below 2^64 (default: RANKFOLD_TEST_SEED, else 1)");
  CLI::Option* filter = command->add_option("--filter", options->filter,
                                            "Only cases whose name the REGEX is found in");
  filter->type_name("REGEX");
  CLI::Option* list =
      command->add_flag("--list", options->list, "Names of the cases; nothing is run");
  CLI::Option* drawn =
      command
          ->add_option("--drawn", options->drawn,
                       "Instead of the table, N calls whose operation, dtypes, sizes, "
                       "ranks and layout are drawn from the seed")
          ->type_name("N")
          ->check(CLI::PositiveNumber)
          ->excludes(filter)
          ->excludes(list);
  command->add_option("--first", options->first, "Number of the first drawn call (default: 0)")
      ->type_name("N")
      ->needs(drawn);
  command->add_option("--case", options->case_file, "Replay a case file instead of the table")
      ->type_name("FILE")
      ->excludes(filter)
      ->excludes(list)
      ->excludes(drawn);
  command->add_flag("--json", options->json, "One JSON document on stdout");
  command->footer(
      "A line a case; a failure shows the command that repeats it alone. The last line is\n"
      "\"N passed, N failed, N skipped\". Exit code 1 when a case failed.\n\n"
      "Examples:\n"
      "  rankfold check\n"
      "  rankfold check --backend reference --filter 'shrink.*bf16'\n"
      "  rankfold check --drawn 1000 --seed 7\n"
      "  rankfold check --case my_case.safetensors\n");
  return [options](Output& out) { return run_check(*options, out); };
}

std::function<int(Output&)> add_bench(CLI::App& app) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* command =
      app.add_subcommand("bench", "Time the operations beside what this machine can reach");
  command->add_option("--backend", options->backend, kBackendHelp);
  CLI::Option* workloads =
      command
          ->add_option("--workloads", options->workloads,
                       "The points to time (default: share/rankfold/workloads.json beside the "
                       "command's own folder, else bench/workloads.json here)")
          ->type_name("FILE");
  command
      ->add_option("--peers", options->peers,
                   "What other systems took, to stand beside a GPU's times (default: "
                   "share/rankfold/peers-h200.json or bench/peers-h200.json)")
      ->type_name("FILE");
  command->add_option("--filter", options->filter, "Only points whose name the REGEX is found in")
      ->type_name("REGEX");
  command->add_flag("--sweep", options->sweep,
                    "Time every strategy and configuration of the backend at each point");
  command
      ->add_flag(
          "--off-grid", options->off_grid,
          "60 points of odd sizes, ranks and dtypes instead of a file's, with limits of their own")
      ->excludes(workloads);
  command->add_flag("--checks", options->checks,
                    "Also, on a GPU: grouping of many rows, a table far wider than its adapters, a "
                    "batch without adapters");
  command->add_option("--json", options->json, "Also write the results as JSON; - is stdout")
      ->type_name("OUT");
  command->add_option("--markdown", options->markdown, "Also write the results as tables")
      ->type_name("OUT");
  command->add_option("--figures", options->figures, "Also draw the results, an SVG file a group")
      ->type_name("DIR");
  command
      ->add_option("--from", options->from,
                   "Measure nothing: --markdown and --figures of results that --json wrote")
      ->type_name("JSON");
  command->footer(
      "Weights are cold, as in a model: copies that together exceed the last-level cache are\n"
      "used in turn; on a CUDA device inside one graph. Each point is compared with a float64\n"
      "result before it is timed. Columns:\n"
      "  time    median, 10th and 90th percentile of one call\n"
      "  floor   a plain elementwise pass over as many cold bytes, in this run\n"
      "  in order  on a GPU: the median with CallOptions.overlap off\n"
      "  bound   the bytes that must move at the best bandwidth measured in this run, or the\n"
      "          multiplications at the measured rate, whichever takes longer\n"
      "  goal    on a GPU: 1.15 floor + 2.5 us; off the grid the limit 1.6 floor + 4 us\n"
      "  peer    on a GPU: the best of other systems on their machine, over their floor there;\n"
      "          ahead: less time and a lower ratio\n"
      "  group   group_tokens, once a step and not part of the time\n"
      "  host    what a call takes the caller, outside any graph\n"
      "All points that come with the command take minutes on a GPU and well over ten minutes on\n"
      "two cores; --filter picks some.\n\n"
      "Examples:\n"
      "  rankfold bench --filter 'decode/l8-qkv'\n"
      "  rankfold bench --backend cuda --checks --json grid.json\n"
      "  rankfold bench --from grid.json --markdown grid.md --figures figures\n");
  return [options](Output& out) { return run_bench(*options, out); };
}

std::function<int(Output&)> add_tune(CLI::App& app) {
  auto options = std::make_shared<TuneOptions>();
  CLI::App* command = app.add_subcommand(
      "tune", "Time every configuration on this device and write the fastest to a file");
  command->add_option("--backend", options->backend, kBackendHelp);
  command
      ->add_option("--shapes", options->shapes,
                   "The points to tune for, in the form of bench's workloads (default: those that "
                   "bench times)")
      ->type_name("FILE");
  command->add_option("--filter", options->filter, "Only points whose name the REGEX is found in")
      ->type_name("REGEX");
  command
      ->add_option("-o,--output", options->output,
                   "The tuning file; takes its name when it is whole")
      ->type_name("FILE")
      ->required();
  command->footer(
      "RANKFOLD_TUNING=FILE makes backends take what is written there for calls that leave the\n"
      "strategy open, at these shapes and at as many rows and segments, counted in powers of two.\n"
      "Each configuration is compared with a float64 result before it is timed, with cold weights\n"
      "as by `rankfold bench`; what gains under 2 % is not written. Points with several adapters\n"
      "are tuned twice: rows grouped by slot, and slots of tokens alone.\n\n"
      "Examples:\n"
      "  rankfold tune -o h200.tuning\n"
      "  rankfold tune --backend cuda:1 --shapes my_model.json -o my_model.tuning\n"
      "  RANKFOLD_TUNING=h200.tuning rankfold bench\n");
  return [options](Output& out) { return run_tune(*options, out); };
}

int run(int argc, char** argv) {
  CLI::App app(kDescription, "rankfold");
  app.footer(kFooter);
  app.set_version_flag("--version", std::string("rankfold ") + version());
  app.require_subcommand(0, 1);
  const std::pair<const char*, std::function<int(Output&)>> commands[] = {
      {"list", add_list(app)},   {"inspect", add_inspect(app)}, {"check", add_check(app)},
      {"bench", add_bench(app)}, {"tune", add_tune(app)},
  };

  Output out(stdout);
  // CLI11 calls a command that it does not know an argument, and would let --help beside it
  // succeed.
  const std::string first = argc > 1 ? argv[1] : "";
  const bool known = std::any_of(std::begin(commands), std::end(commands),
                                 [&](const auto& command) { return first == command.first; });
  if (argc > 1 && !known && (first.empty() || first[0] != '-')) {
    fmt::print(stderr,
               "rankfold: this version has no command \"{}\"; there are:", printable(first));
    for (const auto& [name, run_command] : commands) fmt::print(stderr, " {}", name);
    fmt::print(stderr, "\nSee `rankfold --help`.\n");
    return kExitUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    const CLI::App* asked = &app;
    for (const CLI::App* command : app.get_subcommands()) asked = command;
    const bool help = dynamic_cast<const CLI::CallForHelp*>(&success) != nullptr;
    const std::string parent = asked == &app ? "" : app.get_name();
    out.write(help ? asked->help(parent) : std::string(success.what()) + "\n");
    return out.finish(kExitOk);
  } catch (const CLI::ParseError& error) {
    std::string command = "rankfold";
    for (const CLI::App* used : app.get_subcommands()) command += " " + used->get_name();
    fmt::print(stderr, "{}: {}\nSee `{} --help`.\n", command, printable(error.what()), command);
    return kExitUsage;
  }

  for (const auto& [name, command] : commands) {
    if (!app.got_subcommand(name)) continue;
    try {
      return out.finish(command(out));
    } catch (const CommandError& error) {
      out.finish(kExitOk);
      fmt::print(stderr, "rankfold {}: {}\n", name, printable(error.what()));
      return error.exit_code();
    }
  }
  fmt::print(stderr, "{}", app.help());
  return kExitUsage;
}

}  // namespace
}  // namespace rankfold::tools

int main(int argc, char** argv) {
  // A reader that leaves early (`rankfold list | head`) is seen as EPIPE by Output.
  std::signal(SIGPIPE, SIG_IGN);
  try {
    return rankfold::tools::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "rankfold: {}\n", rankfold::tools::printable(error.what()));
    return rankfold::tools::kExitFailure;
  }
}
