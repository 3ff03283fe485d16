// What every command shares: help, version, usage errors, exit codes, and where the output goes.
#include <doctest/doctest.h>

#include "rankfold/version.hpp"
#include "run_tool.hpp"

using rankfold::test::contains;
using rankfold::test::run_tool;
using rankfold::test::Stdout;
using rankfold::test::ToolRun;

TEST_CASE("--version prints the version alone") {
  const ToolRun run = run_tool({"--version"});
  CHECK(run.exit_code == 0);
  CHECK(run.out == std::string("rankfold ") + rankfold::version() + "\n");
  CHECK(run.err.empty());
}

TEST_CASE("help: every command, the exit codes, examples") {
  const ToolRun run = run_tool({"--help"});
  CHECK(run.exit_code == 0);
  CHECK(run.err.empty());
  for (const char* part : {"list", "inspect", "check", "bench", "Exit codes", "RANKFOLD_BACKEND",
                           "rankfold inspect MY_ADAPTER"}) {
    CAPTURE(std::string(part));
    CHECK(contains(run.out, part));
  }
  for (const std::string command : {"list", "inspect", "check", "bench"}) {
    CAPTURE(command);
    const ToolRun help = run_tool({command, "--help"});
    CHECK(help.exit_code == 0);
    CHECK(help.err.empty());
    CHECK(contains(help.out, "Examples:\n  "));
    CHECK(contains(help.out, "Usage: rankfold " + command + " "));
  }
}

TEST_CASE("usage errors: exit code 2, nothing on stdout, a hint on stderr") {
  const std::vector<std::vector<std::string>> lines = {
      {"--nonsense"},
      {"nonsense"},
      {"list", "--nonsense"},
      {"list", "superfluous"},
      {"inspect"},
      {"inspect", "a", "b"},
      {"check", "--filter"},
      {"bench", "--json"},
      {"check", "--list", "--case", "x"},
      {"check", "--seed", "twelve"},
      {"check", "--seed", "-1"},
      {"check", "--filter", "("},
      {"bench", "--filter", "["},
  };
  for (const auto& words : lines) {
    CAPTURE(words[0]);
    CAPTURE(words.back());
    const ToolRun run = run_tool(words);
    CHECK(run.exit_code == 2);
    CHECK(run.out.empty());
    CHECK(run.err.rfind("rankfold", 0) == 0);
  }
  CHECK(contains(run_tool({"list", "--nonsense"}).err, "--nonsense"));
  CHECK(contains(run_tool({"list", "--nonsense"}).err, "rankfold list --help"));
}

TEST_CASE("an unknown command is called that, and the known ones are named") {
  const std::string err = run_tool({"serve"}).err;
  CHECK(contains(err, "this version has no command \"serve\""));
  CHECK(contains(err, "list inspect check bench tune"));
}

TEST_CASE("no command: the help, as an error") {
  const ToolRun run = run_tool({});
  CHECK(run.exit_code == 2);
  CHECK(run.out.empty());
  CHECK(contains(run.err, "Start with:"));
}

TEST_CASE("a reader that has left is no crash") {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"list"},
        {"list", "--json"},
        {"--help"},
        {"check", "--list"},
        {"inspect", RANKFOLD_TEST_DATA "/peft_llama/adapters/r1"}}) {
    CAPTURE(words[0]);
    const ToolRun run = run_tool(words, {}, Stdout::closed_pipe);
    CHECK(run.signal == 0);
    CHECK(run.exit_code == 0);
    CHECK(run.err.empty());
  }
}

TEST_CASE("checks that nobody reads are stopped, and not called passed") {
  const ToolRun run = run_tool({"check", "--backend", "reference"}, {}, Stdout::closed_pipe);
  CHECK(run.signal == 0);
  CHECK(run.exit_code == 1);
}

TEST_CASE("an output that cannot be written is an error") {
  const ToolRun run = run_tool({"list"}, {}, Stdout::full_disk);
  CHECK(run.exit_code == 1);
  CHECK(contains(run.err, "cannot be written"));
}

TEST_CASE("no colours unless a terminal") {
  const ToolRun run = run_tool({"inspect", RANKFOLD_TEST_DATA "/peft_llama/adapters/dora_r8"},
                               {"TERM=xterm-256color"});
  CHECK(run.exit_code == 3);
  CHECK_FALSE(contains(run.out, "\x1b"));
}

TEST_CASE("a command that is not there: help beside it is no success") {
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"frob"}, {"frob", "--help"}, {"frob", "--version"}, {"", "-h"}, {"LIST"}}) {
    CAPTURE(words[0]);
    const ToolRun run = run_tool(words);
    CHECK(run.exit_code == 2);
    CHECK(run.out.empty());
    CHECK(contains(run.err, "no command \"" + words[0] + "\""));
    CHECK(contains(run.err, "list inspect check bench"));
  }
}

TEST_CASE("bench --help says how long it takes") {
  CHECK(contains(run_tool({"bench", "--help"}).out, "ten minutes"));
}

TEST_CASE("no control character of an argument reaches the terminal") {
  const std::string escape = "\x1b[31m",
                    c1 = "\xc2\x9b"
                         "31m",
                    no_utf8 =
                        "\x9b"
                        "31m";
  for (const std::string& hostile : {escape, c1, no_utf8}) {
    for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
             {hostile},
             {"list", "--kernels=" + hostile},
             {"check", "--" + hostile},
             {"check", "--seed", hostile},
             {"check", "--list", "--filter", hostile + "("},
             {"check", "--case", "/does/not/exist/" + hostile},
             {"inspect", "/does/not/exist/" + hostile},
             {"inspect", "/does/not/exist/" + hostile, "--json"},
             {"bench", "--filter", hostile},
             {"bench", "--workloads", "/does/not/exist/" + hostile}}) {
      CAPTURE(words[0]);
      const ToolRun run = run_tool(words);
      CHECK(run.exit_code == 2);
      CHECK_FALSE(contains(run.out + run.err, "\x1b"));
      CHECK_FALSE(contains(run.out + run.err, "\x9b"));
      CHECK(contains(run.err, "31m"));
    }
    const ToolRun run = run_tool({"list"}, {"RANKFOLD_BACKEND=" + hostile});
    CHECK(run.exit_code == 2);
    CHECK_FALSE(contains(run.out + run.err, "\x1b"));
    CHECK_FALSE(contains(run.out + run.err, "\x9b"));
  }
  // Other characters stay as they are.
  CHECK(contains(run_tool({"inspect", "/does/not/exist/\xc3\xa9\xe4\xb8\xad"}).err,
                 "\xc3\xa9\xe4\xb8\xad"));
}

TEST_CASE("filters: any expression ends, in time that is linear in the names") {
  std::string deep(50000, '(');
  deep += std::string(50000, ')');
  std::string stars;
  for (int i = 0; i < 30; ++i) stars += "(l|l|l)*";
  for (const std::string& bomb : {std::string("(.*)*(.*)*(.*)*\\x01"), std::string(100000, 'x'),
                                  deep, std::string("a{1000}{1000}{1000}"), stars + "\\x01"}) {
    CAPTURE(bomb.substr(0, 30));
    for (const char* command : {"check", "bench"}) {
      std::vector<std::string> words = {command, "--filter", bomb};
      if (words[0] == "check") words.emplace_back("--list");
      const ToolRun run = run_tool(words);
      CHECK(run.exit_code == 2);
      CHECK(contains(run.err, "--filter: "));
      CHECK(run.err.size() < 1000);
    }
  }
}
