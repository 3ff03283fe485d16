// Which entry of the table and which row of x a row uses, from the contract's words.
#include "host_call.hpp"

namespace rankfold::testing {

namespace {

// The expert whose rows these are, -1 where none is.
std::int64_t expert_of_row(const HostCall& call, std::int64_t row) {
  const HostExperts& experts = call.experts;
  const std::int64_t count = call.shape.num_experts;
  if (experts.mode == ExpertMode::gather) {
    const std::int64_t id = experts.expert_ids[static_cast<std::size_t>(row)];
    const std::int64_t local = id - experts.expert_base;
    return local >= 0 && local < count ? local : -1;
  }
  for (std::int64_t expert = 0; expert < count; ++expert) {
    const auto at = static_cast<std::size_t>(expert);
    if (row >= experts.expert_offsets[at] && row < experts.expert_offsets[at + 1]) return expert;
  }
  return -1;
}

// -1 where nobody needs to know, and nothing says it.
std::int64_t token_of_row(const HostExperts& experts, std::int64_t row) {
  if (experts.mode == ExpertMode::gather) return row / experts.top_k;
  return experts.row_tokens.empty() ? -1 : experts.row_tokens[static_cast<std::size_t>(row)];
}

RowRoute route_of_row(const HostCall& call, std::int64_t row) {
  const HostExperts& experts = call.experts;
  const HostAddressing& addressing = call.addressing;
  RowRoute route;
  const std::int64_t end = experts.row_end < 0 ? experts.num_rows : experts.row_end;
  route.in_window = row >= experts.row_begin && row < end;
  if (!route.in_window) return route;
  const std::int64_t expert = expert_of_row(call, row);
  if (expert < 0) return route;
  const std::int64_t token = token_of_row(experts, row);
  const std::int32_t slot =
      addressing.token_slots.empty() ? 0 : addressing.token_slots[static_cast<std::size_t>(token)];
  if (slot < 0 || slot >= call.shape.num_slots) return route;
  route.slot = slot;
  route.expert = static_cast<std::int32_t>(expert);
  route.x_row = call.x_row_stride == 0 ? 0 : experts.x_rows == XRows::own ? row : token;
  if (!experts.row_weights.empty()) {
    route.weight *= experts.row_weights[static_cast<std::size_t>(row)];
  }
  if (!addressing.token_weights.empty()) {
    route.weight *= addressing.token_weights[static_cast<std::size_t>(token)];
  }
  return route;
}

}  // namespace

std::vector<RowRoute> routes_of(const HostCall& call) {
  std::vector<RowRoute> routes(static_cast<std::size_t>(num_rows(call)));
  if (is_experts(call.op)) {
    for (std::size_t row = 0; row < routes.size(); ++row) {
      routes[row] = route_of_row(call, static_cast<std::int64_t>(row));
    }
    return routes;
  }
  const std::vector<std::int32_t> slots = row_slots(call);
  for (std::size_t row = 0; row < routes.size(); ++row) {
    routes[row].slot = slots[row];
    routes[row].x_row = call.x_row_stride == 0 ? 0 : static_cast<std::int64_t>(row);
    if (!call.addressing.token_weights.empty()) {
      routes[row].weight = call.addressing.token_weights[row];
    }
  }
  return routes;
}

}  // namespace rankfold::testing
