// rank_pattern and alpha_pattern as PEFT reads them.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "adapter/module_patterns.hpp"
#include "files.hpp"

using adapter_tests::check_error;
using rankfold::StatusCode;
using rankfold::detail::ModulePatterns;

namespace {

double find(const std::vector<std::string>& patterns, const std::string& path) {
  ModulePatterns list;
  double value = 1;
  for (const std::string& pattern : patterns) {
    const auto status = list.add(pattern, value++);
    REQUIRE_MESSAGE(status.ok(), status.message());
  }
  const auto found = list.find(path, -1);
  REQUIRE_MESSAGE(found.ok(), found.status().message());
  return *found;
}

}  // namespace

TEST_CASE("patterns: matched from the start, to the end, after a dot") {
  const std::string path = "model.layers.0.self_attn.q_proj";
  CHECK(find({"q_proj"}, path) == 1);
  CHECK(find({"self_attn.q_proj"}, path) == 1);
  CHECK(find({"layers.0.self_attn.q_proj"}, path) == 1);
  CHECK(find({path}, path) == 1);
  CHECK(find({"proj"}, path) == -1);  // not after a dot
  CHECK(find({"attn.q_proj"}, path) == -1);
  CHECK(find({"self_attn"}, path) == -1);  // not at the end
  CHECK(find({"^model.*q_proj$"}, path) == 1);
  CHECK(find({"^layers.0.self_attn.q_proj"}, path) == -1);  // PEFT paths begin with model
  CHECK(find({"q_proj|k_proj"}, path) == 1);
  CHECK(find({"k_proj|q_proj"}, path) == 1);
  CHECK(find({"layers.[0-3].*"}, path) == 1);
  CHECK(find({"layers\\.\\d+\\.self_attn\\.[qk]_proj"}, path) == 1);
  CHECK(find({"(?:q|k)_proj"}, path) == 1);
  CHECK(find({"x)|(.*q_proj"}, path) == 1);  // legal in PEFT, since the key is pasted in
  CHECK(find({}, path) == -1);
}

TEST_CASE("patterns: the first in the order of the file wins") {
  CHECK(find({"q_proj", "layers.0.self_attn.q_proj"}, "model.layers.0.self_attn.q_proj") == 1);
  CHECK(find({"layers.1.self_attn.q_proj", "q_proj"}, "model.layers.0.self_attn.q_proj") == 2);
}

TEST_CASE("patterns: a key that is the path itself counts even where its regex does not match") {
  CHECK(find({"block(a).proj"}, "block(a).proj") == 1);
  CHECK(find({"block(a).proj"}, "x.block(a).proj") == -1);
}

TEST_CASE("patterns: what RE2 and Python read differently, or cannot run, is refused by quoting") {
  for (const char* pattern : {"(?!x)q_proj",  "(?<=a)q_proj",
                              "(a)\\1",       "(?P<n>a)(?P=n)",
                              "(?i)q_proj",   "(?#c)q",
                              "q{,3}",        "[[:alpha:]]_proj",
                              "[a[:digit:]]", "[^[:alpha:]]",
                              "\\Qq\\E",      "\\pL",
                              "\\Cq",         "\\x{71}",
                              "q_proj\\Z",    "(",
                              "a**",          "a*+",
                              "(?>a)",        "[z-a]",
                              "x{1001}",      "((x{100}){100}){100}"}) {
    CAPTURE(std::string(pattern));
    ModulePatterns list;
    check_error(list.add(pattern, 1), StatusCode::unsupported, {std::string("'") + pattern + "'"});
  }
  ModulePatterns list;
  CHECK(list.add(std::string(1024, 'x'), 1).ok());
  check_error(list.add(std::string(1025, 'x'), 1), StatusCode::unsupported, {"1025", "1024"});
  // A bracket that stands first is a letter, so the class ends later.
  CHECK(find({"[]a]_proj"}, "model.]_proj") == 1);
  CHECK(find({"[^]a]_proj"}, "model.b_proj") == 1);
}

TEST_CASE("patterns: paths too long, or not ASCII under an escape, are refused") {
  ModulePatterns list;
  REQUIRE(list.add("\\w+_proj", 1).ok());
  CHECK(list.find(std::string(512, 'x'), -1).ok());
  check_error(list.find(std::string(513, 'x'), -1).status(), StatusCode::unsupported, {"513"});
  check_error(list.find("\xc3\xa4_proj", -1).status(), StatusCode::unsupported, {"ASCII"});
  ModulePatterns dot;
  REQUIRE(dot.add("a\\.._proj", 1).ok());  // an escaped dot means the same everywhere
  CHECK(*dot.find("a.\xc3\xa4_proj", -1) == 1);
  ModulePatterns plain;
  REQUIRE(plain.add("._proj", 1).ok());
  CHECK(*plain.find("\xc3\xa4_proj", -1) == 1);  // a dot is one character, not one byte
}

TEST_CASE("patterns: a pattern that would take exponential time elsewhere ends at once") {
  CHECK(find({"(a*)*b", "(a|a)*b", "(.*a){20}b"}, std::string(500, 'a')) == -1);
}

TEST_CASE("patterns: what the patterns of a file take together is bounded") {
  ModulePatterns list;
  int accepted = 0;
  while (!list.exhausted() && accepted < 100000) {
    const std::string pattern = "([^a]{200})" + std::to_string(accepted++);
    REQUIRE(list.add(pattern, 1).ok());
  }
  CHECK(accepted < 10000);
  check_error(list.add("last", 1), StatusCode::unsupported, {"'last'", "memory"});
  // A pattern that is refused for its size has cost as much as one that is not.
  ModulePatterns refused;
  int tried = 0;
  while (!refused.exhausted() && tried < 1000) {
    CHECK(!refused.add("([^a]{1000}){2}" + std::to_string(tried++), 1).ok());
  }
  CHECK(tried < 100);
}
