// The conformance cases of one backend as a test: conformance_test NAME [--filter REGEX] [--quick]
// [--shard I/N] [--drawn N] [--first N] [--seed N] [--verbose]. Exit 77: the backend is not of this
// build or not usable here, unless RANKFOLD_REQUIRE_BACKEND names it.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "conformance.hpp"
#include "rankfold/registry.hpp"

namespace {

constexpr int kSkipped = 77;

struct Arguments {
  std::string backend, filter;
  rankfold::conformance::RunOptions options;
  std::uint64_t drawn = 0, first = 0;  ///< with drawn: calls drawn at random instead of the table
  bool verbose = false;
};

bool parse(int argc, char** argv, Arguments& arguments) {
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    const char* const next = i + 1 < argc ? argv[i + 1] : nullptr;
    if (text == "--quick") {
      arguments.options.quick = true;
    } else if (text == "--verbose") {
      arguments.verbose = true;
    } else if (text == "--filter" && next != nullptr) {
      arguments.filter = next;
      ++i;
    } else if (text == "--drawn" && next != nullptr) {
      arguments.drawn = std::strtoull(next, nullptr, 10);
      ++i;
    } else if (text == "--shard" && next != nullptr) {
      auto& options = arguments.options;
      if (std::sscanf(next, "%d/%d", &options.shard, &options.num_shards) != 2 ||
          options.shard < 0 || options.shard >= options.num_shards) {
        return false;
      }
      ++i;
    } else if (text == "--first" && next != nullptr) {
      arguments.first = std::strtoull(next, nullptr, 10);
      ++i;
    } else if (text == "--seed" && next != nullptr) {
      arguments.options.seed = std::strtoull(next, nullptr, 10);
      ++i;
    } else if (!text.empty() && text[0] != '-' && arguments.backend.empty()) {
      arguments.backend = text;
    } else {
      return false;
    }
  }
  return !arguments.backend.empty();
}

int without_backend(const std::string& name, const rankfold::Status& status) {
  const char* const required = std::getenv("RANKFOLD_REQUIRE_BACKEND");
  const bool is_required = required != nullptr && name == required;
  const bool may_skip = status.code() == rankfold::StatusCode::not_compiled ||
                        status.code() == rankfold::StatusCode::unavailable;
  std::printf("%s: %s: %s\n",
              !may_skip     ? "FAILED"
              : is_required ? "FAILED, RANKFOLD_REQUIRE_BACKEND asks for it"
                            : "skipped",
              name.c_str(), status.message());
  return may_skip && !is_required ? kSkipped : 1;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace rankfold::conformance;
  Arguments arguments;
  const auto seed = default_seed();
  if (!seed.ok()) {
    std::fprintf(stderr, "%s\n", seed.status().message());
    return 2;
  }
  arguments.options.seed = *seed;
  if (!parse(argc, argv, arguments)) {
    std::fprintf(stderr,
                 "usage: %s BACKEND [--filter REGEX [--shard I/N] | --drawn N [--first N]] "
                 "[--quick] [--seed N] "
                 "[--verbose]\n",
                 argv[0]);
    return 2;
  }
  arguments.options.backend_name = arguments.backend;
  const auto backend = rankfold::registry().get(arguments.backend.c_str());
  if (!backend.ok()) return without_backend(arguments.backend, backend.status());

  std::printf("backend %s, seed %llu, %zu cases in the table\n", arguments.backend.c_str(),
              static_cast<unsigned long long>(arguments.options.seed), list_cases().size());
  const auto start = std::chrono::steady_clock::now();
  const auto report = [&](const CaseResult& result) {
    const bool failed = result.verdict == Verdict::failed;
    if (!failed && !arguments.verbose) return;
    std::printf("%-7s %s  %.3f s, error %.3g\n", to_string(result.verdict), result.name.c_str(),
                result.seconds, result.max_error);
    if (!result.message.empty()) {
      std::printf("        %s\n", result.message.c_str());
    }
    if (failed) std::printf("        %s\n", result.repeat.c_str());
    std::fflush(stdout);
  };
  const rankfold::Result<Summary> summary =
      arguments.drawn == 0
          ? run_cases(**backend, arguments.filter, arguments.options, report)
          : run_drawn_cases(**backend, arguments.first, arguments.drawn, arguments.options, report);
  if (!summary.ok()) {
    std::fprintf(stderr, "%s\n", summary.status().message());
    return 2;
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf("%d passed, %d failed, %d skipped in %.1f s\n", summary->passed, summary->failed,
              summary->skipped, seconds);
  return summary->failed == 0 ? 0 : 1;
}
