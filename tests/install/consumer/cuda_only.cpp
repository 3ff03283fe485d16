// A host that brings the CUDA backend alone. It starts where there is no driver, and says so; with
// a GPU it computes.
#include <rankfold/cuda.hpp>
#include <rankfold/rankfold.hpp>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <memory>

namespace {

// One row, one adapter of rank 1: y = 100 + 0.5 * 7 * (1, 2, 3).
bool computes(rankfold::LoraBackend& backend) {
  rankfold::OwnedStream stream = rankfold::OwnedStream::create(backend).value();
  struct Data {
    float x[4] = {1, 2, 3, 4}, a[4] = {1, -1, 0, 2}, b[4] = {1, 2, 3, 0}, y[4] = {100, 100, 100, 0};
  } data;
  rankfold::Buffer memory = rankfold::Buffer::create(backend, sizeof data).value();
  Data* const there = memory.as<Data>();
  throw_if_error(
      backend.copy(there, &data, sizeof data, rankfold::CopyKind::host_to_device, stream));
  rankfold::AdapterTable table =
      rankfold::AdapterTable::create(backend, {.num_slots = 1, .max_rank = 1, .in = 4, .out = {3}})
          .value();
  throw_if_error(
      table.set_entry(0, 0, 0, {.a = there->a, .b = there->b, .rank = 1, .scaling = 0.5f}, stream));
  const rankfold::Device device = backend.device();
  rankfold::ApplyLinearArgs args = {.x = rankfold::const_matrix(there->x, 1, 4),
                                    .table = table.view(),
                                    .addressing = {.mode = rankfold::AddressingMode::uniform,
                                                   .uniform_slot = 0,
                                                   .num_tokens = 1,
                                                   .device = device},
                                    .y = rankfold::matrix(there->y, 1, 3)};
  args.x.device = args.y.device = device;
  const std::uint64_t bytes = workspace_bytes(backend, make_problem(args)).value();
  rankfold::Buffer workspace = rankfold::Buffer::create(backend, bytes).value();
  throw_if_error(apply_linear(backend, args, workspace.workspace(), stream));
  throw_if_error(
      backend.copy(&data, there, sizeof data, rankfold::CopyKind::device_to_host, stream));
  throw_if_error(stream.synchronize());
  return data.y[0] == 103.5f && data.y[1] == 107.0f && data.y[2] == 110.5f;
}

}  // namespace

int main() {
  rankfold::BackendDescription description;
  rankfold::cuda::descriptor().describe(&description);
  rankfold::LoraBackend* made = nullptr;
  const rankfold::Status status = rankfold::cuda::descriptor().create(0, &made);
  const std::unique_ptr<rankfold::LoraBackend> backend(made);
  if (!status.ok()) {
    const bool right = status.code() == rankfold::StatusCode::unavailable &&
                       description.usable == 0 && std::strlen(description.reason) > 0;
    std::printf("%s\n%s: %s\n", description.detail, status.message(), right ? "right" : "WRONG");
    return right ? 0 : 1;
  }
  const bool right = computes(*backend);
  std::printf("%s on %s: %s\n", backend->name(), description.devices[0].name,
              right ? "right" : "WRONG");
  return right ? 0 : 1;
}
