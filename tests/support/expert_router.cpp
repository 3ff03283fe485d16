#include "expert_router.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "fill.hpp"

namespace rankfold::testing {

namespace {

constexpr std::uint64_t kChoices = 0xe7be57;
constexpr std::uint64_t kStrange = 0x57a6e;
constexpr std::int32_t kNoToken = 0x7ead7ead;

class Router {
 public:
  explicit Router(const RouterSpec& spec)
      : spec_(spec),
        global_(spec.global_experts > 0 ? spec.global_experts
                                        : std::int64_t{spec.expert_base} + spec.num_experts) {}

  // Global ids, token-major.
  std::vector<std::int32_t> choose() const {
    std::vector<std::int32_t> ids;
    for (std::int64_t token = 0; token < spec_.num_tokens; ++token) {
      const std::size_t first = ids.size();
      for (std::int32_t k = 0; k < spec_.top_k; ++k) {
        const auto row = static_cast<std::uint64_t>(token * spec_.top_k + k);
        std::int32_t id = choice(row, ids.size() > first ? ids[first] : 0, k);
        while (distinct() && std::find(ids.begin() + static_cast<std::ptrdiff_t>(first), ids.end(),
                                       id) != ids.end()) {
          id = next(id);
        }
        ids.push_back(id);
      }
    }
    if (spec_.routing == Routing::skewed) add_strange(ids);
    return ids;
  }

 private:
  bool distinct() const {
    const bool draws = spec_.routing == Routing::skewed || spec_.routing == Routing::even;
    return draws && spec_.top_k < global_ / 2;
  }
  // A third of the experts get no rows when skewed.
  bool is_idle(std::int32_t id) const {
    return spec_.routing == Routing::skewed && global_ > 3 && id % 3 == 1;
  }
  std::int32_t next(std::int32_t id) const {
    do id = static_cast<std::int32_t>((std::int64_t{id} + 1) % global_);
    while (is_idle(id));
    return id;
  }
  std::int32_t choice(std::uint64_t row, std::int32_t first_of_token, std::int32_t k) const {
    const double unit = 0.5 + 0.5 * random_unit(spec_.seed, kChoices, row);
    switch (spec_.routing) {
      case Routing::one:
        return spec_.expert_base + std::min(3, spec_.num_experts - 1);
      case Routing::twice:
        if (k > 0) return first_of_token;
        break;
      case Routing::nowhere: {
        const std::int32_t wild[] = {-1, spec_.expert_base - 1,
                                     spec_.expert_base + spec_.num_experts,
                                     std::numeric_limits<std::int32_t>::min()};
        return wild[row % 4];
      }
      case Routing::skewed: {
        const double skewed = spec_.expert_base + static_cast<double>(global_) * unit * unit * unit;
        const auto id = static_cast<std::int32_t>(static_cast<std::int64_t>(skewed) % global_);
        return is_idle(id) ? next(id) : id;
      }
      case Routing::even:
        break;
    }
    return static_cast<std::int32_t>(random_between(spec_.seed, kChoices, row, 0, global_ - 1));
  }
  void add_strange(std::vector<std::int32_t>& ids) const {
    const std::int32_t wild[] = {-1,
                                 -7,
                                 std::numeric_limits<std::int32_t>::min(),
                                 std::numeric_limits<std::int32_t>::max(),
                                 spec_.expert_base + spec_.num_experts,
                                 spec_.expert_base - 1};
    for (std::size_t row = 0; row < ids.size(); ++row) {
      const std::uint64_t draw = random_bits(spec_.seed, kStrange, row);
      if (draw % 7 == 0) ids[row] = wild[draw / 7 % std::size(wild)];
    }
  }

  const RouterSpec& spec_;
  std::int64_t global_;
};

void group(const RouterSpec& spec, const std::vector<std::int32_t>& ids, HostExperts& experts) {
  experts.expert_offsets.assign(1, 0);
  experts.row_tokens.clear();
  for (std::int64_t expert = 0; expert < spec.num_experts; ++expert) {
    for (std::size_t row = 0; row < ids.size(); ++row) {
      if (std::int64_t{ids[row]} - spec.expert_base == expert) {
        experts.row_tokens.push_back(static_cast<std::int32_t>(row) / spec.top_k);
      }
    }
    experts.expert_offsets.push_back(static_cast<std::int32_t>(experts.row_tokens.size()));
  }
  experts.row_tokens.resize(ids.size(), kNoToken);
}

}  // namespace

void route_tokens(const RouterSpec& spec, HostExperts& experts) {
  const std::vector<std::int32_t> ids = Router(spec).choose();
  experts.mode = spec.mode;
  experts.num_rows = static_cast<std::int64_t>(ids.size());
  experts.expert_offsets.clear();
  experts.row_tokens.clear();
  experts.expert_ids.clear();
  experts.top_k = 0;
  experts.expert_base = 0;
  if (spec.mode == ExpertMode::grouped) {
    group(spec, ids, experts);
    return;
  }
  experts.expert_ids = ids;
  experts.top_k = spec.top_k;
  experts.expert_base = spec.expert_base;
}

}  // namespace rankfold::testing
