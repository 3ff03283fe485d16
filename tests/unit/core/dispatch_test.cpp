// The free functions: what reaches a backend, in which order calls are refused, what is free.
#include <doctest/doctest.h>

#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "fake_backend.hpp"
#include "grouping.hpp"
#include "rankfold/memory.hpp"
#include "rankfold/operations.hpp"
#include "rankfold/validate.hpp"

using namespace rankfold;
using testing::FakeBackend;

namespace {

constexpr std::int64_t kT = 4;

struct World {
  FakeBackend backend;
  OwnedStream stream = OwnedStream::create(backend, StreamMode::inline_).value();
  AdapterTable table = AdapterTable::create(backend, shape()).value();
  alignas(16) float x[kT * 8] = {};
  alignas(16) float y[kT * 5] = {};
  alignas(64) float scratch[1024];
  std::int32_t slots[kT] = {0, -1, 1, 0};
  float a[3 * 8];
  float b[5 * 3];

  World() {
    for (float& value : a) value = 1;
    for (float& value : b) value = 2;
    for (float& value : x) value = 1;
    AdapterEntry entry;
    entry.a = a;
    entry.b = b;
    entry.rank = 3;
    entry.scaling = 0.5f;
    REQUIRE(table.set_entry(0, 0, 0, entry, stream).ok());
  }
  static TableShape shape() {
    TableShape shape;
    shape.num_slots = 2;
    shape.num_slices = 1;
    shape.max_rank = 4;
    shape.in = 8;
    shape.out[0] = 5;
    return shape;
  }
  ApplyLinearArgs args() {
    ApplyLinearArgs args;
    args.x = const_matrix(x, kT, 8);
    args.table = table.view();
    args.addressing.num_tokens = kT;
    args.addressing.token_slots = slots;
    args.y = matrix(y, kT, 5);
    return args;
  }
  Workspace workspace() { return {scratch, sizeof(scratch), backend.device()}; }
  std::int64_t launches() const { return backend.counters().launches; }
};

void refused(const Status& status, StatusCode code, const char* text) {
  CAPTURE(std::string(status.message()));
  CHECK(status.code() == code);
  CHECK(std::string(status.message()).find(text) != std::string::npos);
}

}  // namespace

TEST_CASE("a valid call reaches the backend once and gives its result") {
  World world;
  const auto before = world.launches();
  REQUIRE(apply_linear(world.backend, world.args(), world.workspace(), world.stream).ok());
  CHECK(world.launches() == before + 1);
  CHECK(world.y[0] == 0.5f * 8 * 2 * 3);
  CHECK(world.y[5] == 0.0f);   // no adapter
  CHECK(world.y[10] == 0.0f);  // rank 0
}

TEST_CASE("choose: the strategy, and the configuration where the call names it") {
  World world;
  Problem problem = make_problem(world.args());
  const Choice choice = choose(world.backend, problem).value();
  CHECK(choice.strategy == supports(world.backend, problem).value());
  CHECK(choice.configuration == 0);
  CHECK(choice.from_tuning == 0);
  problem.options.strategy = choice.strategy;
  problem.options.configuration = 1;
  CHECK(choose(world.backend, problem).value().configuration == 1);
  problem.options.configuration = -1;
  refused(choose(world.backend, problem).status(), StatusCode::invalid_argument,
          "options.configuration is -1");
  problem = make_problem(world.args());
  problem.options.strategy = Strategy::tensor_core;
  CHECK(choose(world.backend, problem).status().code() == StatusCode::unsupported);
}

TEST_CASE("what is refused never reaches the backend") {
  World world;
  const auto before = world.launches();
  const Workspace good = world.workspace();
  ApplyLinearArgs args = world.args();
  args.x.sizes[1] = 3;
  refused(apply_linear(world.backend, args, good, world.stream), StatusCode::invalid_argument,
          "apply_linear: x has 3 columns; it should have 8 (table.shape.in)");
  refused(apply_linear(world.backend, world.args(), good, Stream{}), StatusCode::invalid_argument,
          "apply_linear: stream is null");
  args = world.args();
  args.options.strategy = Strategy::tensor_core;
  CHECK(apply_linear(world.backend, args, good, world.stream).code() == StatusCode::unsupported);
  world.backend.set_supports(
      [](const Problem&) { return Status(StatusCode::unsupported, "not today"); });
  refused(apply_linear(world.backend, world.args(), good, world.stream), StatusCode::unsupported,
          "not today");
  CHECK(world.launches() == before);
}

TEST_CASE("workspace: too small, null, unaligned, elsewhere, overlapping") {
  World world;
  const ApplyLinearArgs args = world.args();
  const std::uint64_t need = workspace_bytes(world.backend, make_problem(args)).value();
  REQUIRE(need > 16);
  const auto run = [&](const Workspace& workspace) {
    return apply_linear(world.backend, args, workspace, world.stream);
  };
  const Workspace good = world.workspace();
  const auto before = world.launches();
  Workspace workspace = good;
  workspace.bytes = need - 1;
  const std::string text = "apply_linear: workspace has " + std::to_string(need - 1) +
                           " bytes; it should have at least " + std::to_string(need);
  refused(run(workspace), StatusCode::workspace_too_small, text.c_str());
  refused(run({}), StatusCode::workspace_too_small, "workspace has 0 bytes");
  workspace = good;
  workspace.data = nullptr;
  refused(run(workspace), StatusCode::invalid_argument, "workspace is null; it should point to");
  workspace.data = world.scratch + 2;
  refused(run(workspace), StatusCode::invalid_argument, "it should be aligned to 16 bytes");
  workspace = good;
  workspace.device.index = 1;
  refused(run(workspace), StatusCode::invalid_argument,
          "workspace is on cpu:1; it should be on cpu:0");
  const auto over = [&](void* data, const char* expected) {
    refused(run({data, need, {}}), StatusCode::invalid_argument, expected);
  };
  over(world.x, "workspace at [0x");
  over(world.x, "overlaps x at");
  over(world.y, "overlaps y at");
  over(const_cast<AdapterEntry*>(world.table.view().entries), "overlaps table.entries at");
  // The last of it, and a size that runs past the address space.
  refused(run({reinterpret_cast<char*>(world.y) - need + 16, need, {}}),
          StatusCode::invalid_argument, "overlaps");
  refused(run({world.x, ~std::uint64_t{0}, {}}), StatusCode::invalid_argument, "overlaps");
  CHECK(world.launches() == before);
  workspace = good;
  workspace.bytes = need;
  CHECK(run(workspace).ok());
}

TEST_CASE("J2: a batch without adapters launches nothing") {
  World world;
  const auto before = world.launches();
  ApplyLinearArgs args = world.args();
  args.addressing.active_rows_bound = 0;
  CHECK(apply_linear(world.backend, args, world.workspace(), world.stream).ok());
  args = world.args();
  args.addressing.num_tokens = 0;
  args.x.sizes[0] = args.y.sizes[0] = 0;
  CHECK(apply_linear(world.backend, args, world.workspace(), world.stream).ok());
  ShrinkArgs shrinking;
  alignas(16) float h[kT * 4];
  shrinking.x = world.args().x;
  shrinking.table = world.table.view();
  shrinking.addressing = world.args().addressing;
  shrinking.addressing.active_rows_bound = 0;
  shrinking.h = matrix(h, kT, 4);
  CHECK(shrink(world.backend, shrinking, {}, world.stream).ok());
  CHECK(world.launches() == before);
}

TEST_CASE("overwriting without adapters still writes zeros") {
  World world;
  ApplyLinearArgs args = world.args();
  args.addressing.active_rows_bound = 0;
  args.addressing.mode = AddressingMode::uniform;
  args.addressing.uniform_slot = -1;
  args.options.y_mode = YMode::overwrite;
  for (float& value : world.y) value = 7;
  REQUIRE(apply_linear(world.backend, args, world.workspace(), world.stream).ok());
  for (const float value : world.y) CHECK(value == 0.0f);
}

TEST_CASE("group_tokens: pointers into the caller's memory, at once") {
  World world;
  alignas(16) std::byte memory[4096];
  GroupTokensArgs args;
  args.num_tokens = kT;
  args.num_slots = 2;
  args.token_slots = world.slots;
  args.memory = memory;
  args.memory_bytes = grouping_bytes(kT, 2);
  LoraAddressing grouped;
  REQUIRE(group_tokens(world.backend, args, world.stream, &grouped).ok());
  CHECK(grouped.mode == AddressingMode::grouped);
  CHECK(grouped.num_tokens == kT);
  CHECK(grouped.max_segments == 2);
  CHECK(*grouped.num_segments == 2);
  CHECK(grouped.token_order[0] == 0);
  CHECK(grouped.token_order[1] == 3);
  CHECK(grouped.token_order[2] == 2);
  CHECK(grouped.segment_offsets[1] == 2);
  CHECK(grouped.segment_offsets[2] == 3);
  CHECK(grouped.segment_slots[1] == 1);
  CHECK(check_addressing(world.backend, grouped, 2, world.stream).ok());
  refused(group_tokens(world.backend, args, world.stream, nullptr), StatusCode::invalid_argument,
          "group_tokens: addressing is null");
  refused(group_tokens(world.backend, args, Stream{}, &grouped), StatusCode::invalid_argument,
          "group_tokens: stream is null");
  GroupTokensArgs empty;
  empty.num_slots = 2;
  REQUIRE(group_tokens(world.backend, empty, world.stream, &grouped).ok());
  CHECK(grouped.num_tokens == 0);
  CHECK(grouped.max_segments == 0);
}

TEST_CASE("operations that a backend lacks answer unsupported with its name") {
  World world;
  ForwardArgs args;
  alignas(16) float h[kT * 4];
  args.x = world.args().x;
  args.y = world.args().y;
  args.table = world.table.view();
  args.addressing = world.args().addressing;
  args.h = matrix(h, kT, 4);
  const Status status = forward(world.backend, args, world.workspace(), world.stream);
  CHECK(status.code() == StatusCode::unsupported);
  CHECK(std::string(status.message()).size() > 10);
}

TEST_CASE("a window's workspace is chosen by its bound, not by all rows") {
  ApplyExpertsArgs args;
  args.table.shape = World::shape();
  args.addressing.num_rows = 100000;
  args.addressing.row_begin = 10;
  args.addressing.row_end = 20;
  CHECK(make_problem(args).bounds.rows == 100000);
  args.addressing.bound_rows = 64;
  CHECK(make_problem(args).bounds.rows == 64);
  CHECK(make_problem(args).bounds.active_rows == 64);
}

TEST_CASE("J2: what the free functions add to a call is small") {
  // Printed, not judged: the machine may be busy.
  World world;
  ApplyLinearArgs args = world.args();
  args.addressing.active_rows_bound = 0;
  const auto time = [](const char* what, auto&& call) {
    constexpr int kCalls = 20000;
    double best = 1e9;
    for (int repeat = 0; repeat < 5; ++repeat) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < kCalls; ++i) call();
      const std::chrono::duration<double, std::nano> elapsed =
          std::chrono::steady_clock::now() - start;
      best = std::min(best, elapsed.count() / kCalls);
    }
    MESSAGE(std::string(what) << ": " << best << " ns a call");
  };
  bool good = true;
  const Workspace workspace = world.workspace();
  time("validate(apply_linear)", [&] { good = good && validate(args, Device{}).ok(); });
  time("apply_linear without active rows",
       [&] { good = good && apply_linear(world.backend, args, workspace, world.stream).ok(); });
  CHECK(good);
}
