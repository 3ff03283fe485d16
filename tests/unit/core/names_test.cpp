#include <doctest/doctest.h>

#include <set>
#include <string>

#include "rankfold/dtype.hpp"
#include "rankfold/options.hpp"
#include "rankfold/status.hpp"
#include "rankfold/version.hpp"

using namespace rankfold;

namespace {

// Every enumerator has its own name, and the name leads back to it.
template <class Enum, class Parse>
void check_names(int count, Parse parse) {
  std::set<std::string> names;
  for (int i = 0; i < count; ++i) {
    const auto value = static_cast<Enum>(i);
    const std::string name = to_string(value);
    CHECK(names.insert(name).second);
    REQUIRE(parse(name).has_value());
    CHECK(*parse(name) == value);
    CHECK(!parse(name + "x").has_value());
    CHECK(!parse(name.substr(0, name.size() - 1)).has_value());
  }
  for (const int outside : {count, -1, 1000}) {
    CHECK(std::string(to_string(static_cast<Enum>(outside))) == "?");
  }
  CHECK(!parse("").has_value());
  CHECK(!parse("?").has_value());
}

}  // namespace

TEST_CASE("names lead to enumerators and back") {
  check_names<DType>(6, [](std::string_view name) { return parse_dtype(name); });
  check_names<Op>(kNumOps, [](std::string_view name) { return parse_op(name); });
  check_names<Strategy>(kNumStrategies, [](std::string_view name) { return parse_strategy(name); });
  check_names<YMode>(2, [](std::string_view name) { return parse_y_mode(name); });
  check_names<StatusCode>(13, [](std::string_view name) { return parse_status_code(name); });
}

TEST_CASE("names stand at the numbers of the ABI") {
  CHECK(std::string(to_string(DType::bf16)) == "bf16");
  CHECK(std::string(to_string(Op::backward_experts)) == "backward_experts");
  CHECK(std::string(to_string(Op::gather_shrink)) == "gather_shrink");
  CHECK(std::string(to_string(Strategy::automatic)) == "auto");
  CHECK(std::string(to_string(Strategy::experts_gathered)) == "experts_gathered");
  CHECK(std::string(to_string(YMode::overwrite)) == "overwrite");
  CHECK(std::string(to_string(StatusCode::workspace_too_small)) == "workspace_too_small");
  CHECK(std::string(to_string(StatusCode::internal)) == "internal");
}

TEST_CASE("dtypes are read in either case, as safetensors writes them") {
  CHECK(parse_dtype("BF16") == DType::bf16);
  CHECK(parse_dtype("F32") == DType::f32);
  CHECK(parse_dtype("I64") == DType::i64);
  CHECK(!parse_dtype("F8_E4M3").has_value());
}

TEST_CASE("the version is that of the header") {
  CHECK(std::string(version()) == std::to_string(RANKFOLD_VERSION_MAJOR) + "." +
                                      std::to_string(RANKFOLD_VERSION_MINOR) + "." +
                                      std::to_string(RANKFOLD_VERSION_PATCH));
}
