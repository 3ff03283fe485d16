// Names of enumerators and back, and the version.
#include <array>
#include <cctype>

#include "rankfold/dtype.hpp"
#include "rankfold/options.hpp"
#include "rankfold/version.hpp"

RANKFOLD_NAMESPACE_BEGIN

namespace {

constexpr std::array<const char*, 6> kDTypes = {"f32", "f16", "bf16", "f64", "i32", "i64"};
constexpr std::array<const char*, kNumOps> kOps = {
    "group_tokens",       "shrink",          "expand",         "apply_linear",
    "gather_shrink",      "apply_embedding", "shrink_experts", "expand_experts",
    "apply_experts",      "forward",         "backward",       "forward_embedding",
    "backward_embedding", "backward_experts"};
constexpr std::array<const char*, kNumStrategies> kStrategies = {
    "auto",    "gemv",    "routed",         "grouped",         "tensor_core",
    "general", "unfused", "experts_sorted", "experts_gathered"};
constexpr std::array<const char*, 2> kYModes = {"accumulate", "overwrite"};

template <class Enum, std::size_t N>
const char* name_of(const std::array<const char*, N>& names, Enum value) noexcept {
  const auto index = static_cast<std::size_t>(value);
  return index < N ? names[index] : "?";
}

template <class Enum, std::size_t N>
std::optional<Enum> value_of(const std::array<const char*, N>& names,
                             std::string_view name) noexcept {
  for (std::size_t i = 0; i < N; ++i) {
    if (name == names[i]) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

}  // namespace

const char* to_string(DType dtype) noexcept { return name_of(kDTypes, dtype); }
const char* to_string(Op op) noexcept { return name_of(kOps, op); }
const char* to_string(Strategy strategy) noexcept { return name_of(kStrategies, strategy); }
const char* to_string(YMode mode) noexcept { return name_of(kYModes, mode); }

std::optional<DType> parse_dtype(std::string_view name) noexcept {
  std::array<char, 4> lower{};
  if (name.empty() || name.size() > lower.size()) return std::nullopt;
  for (std::size_t i = 0; i < name.size(); ++i) {
    lower[i] = static_cast<char>(std::tolower(static_cast<unsigned char>(name[i])));
  }
  return value_of<DType>(kDTypes, std::string_view(lower.data(), name.size()));
}
std::optional<Op> parse_op(std::string_view name) noexcept { return value_of<Op>(kOps, name); }
std::optional<Strategy> parse_strategy(std::string_view name) noexcept {
  return value_of<Strategy>(kStrategies, name);
}
std::optional<YMode> parse_y_mode(std::string_view name) noexcept {
  return value_of<YMode>(kYModes, name);
}

#define RANKFOLD_STRINGIZE_IMPL(x) #x
#define RANKFOLD_STRINGIZE(x) RANKFOLD_STRINGIZE_IMPL(x)

const char* version() noexcept {
  return RANKFOLD_STRINGIZE(RANKFOLD_VERSION_MAJOR) "." RANKFOLD_STRINGIZE(
      RANKFOLD_VERSION_MINOR) "." RANKFOLD_STRINGIZE(RANKFOLD_VERSION_PATCH);
}

RANKFOLD_NAMESPACE_END
