// Two adapters and a row without one, in one batch: what an installed rankfold must compute.
#include <rankfold/rankfold.hpp>

#include <cstdint>
#include <cstdio>
#include <iterator>

int main() {
  rankfold::LoraBackend& backend = rankfold::get_backend("cpu");
  rankfold::OwnedStream stream = rankfold::OwnedStream::create(backend).value();

  const rankfold::TableShape shape = {.num_slots = 2, .max_rank = 2, .in = 4, .out = {3}};
  rankfold::AdapterTable table = rankfold::AdapterTable::create(backend, shape).value();
  const float a0[] = {1, -1, 0, 2};
  const float b0[] = {1, 2, 3};
  const float a1[] = {0, 1, 0, 0, 0, 0, 1, 0};
  const float b1[] = {1, 0, 0, 1, 1, 1};
  throw_if_error(table.set_entry(0, 0, 0, {.a = a0, .b = b0, .rank = 1, .scaling = 0.5f}, stream));
  throw_if_error(table.set_entry(1, 0, 0, {.a = a1, .b = b1, .rank = 2, .scaling = 2.0f}, stream));

  const float x[] = {1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4};
  const std::int32_t slots[] = {1, -1, 0};
  float y[] = {100, 100, 100, 100, 100, 100, 100, 100, 100};
  const rankfold::ApplyLinearArgs args = {
      .x = rankfold::const_matrix(x, 3, 4),
      .table = table.view(),
      .addressing = {.num_tokens = 3, .token_slots = slots},
      .y = rankfold::matrix(y, 3, 3)};
  const std::uint64_t bytes = workspace_bytes(backend, make_problem(args)).value();
  rankfold::Buffer workspace = rankfold::Buffer::create(backend, bytes).value();
  throw_if_error(apply_linear(backend, args, workspace.workspace(), stream));
  throw_if_error(stream.synchronize());

  // Slot 1: h = (2, 3), 2 h B^T = (4, 6, 10). Slot 0: h = 7, h / 2 B^T = (3.5, 7, 10.5).
  const float expected[] = {104, 106, 110, 100, 100, 100, 103.5f, 107, 110.5f};
  int wrong = 0;
  for (std::size_t i = 0; i < std::size(y); ++i) {
    if (y[i] == expected[i]) continue;
    std::printf("y[%zu] is %g, should be %g\n", i, static_cast<double>(y[i]),
                static_cast<double>(expected[i]));
    ++wrong;
  }
  std::printf("rankfold %s, backend %s: %s\n", rankfold::version(), backend.name(),
              wrong == 0 ? "right" : "WRONG");
  return wrong == 0 ? 0 : 1;
}
