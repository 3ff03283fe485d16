// Tables that change in place, tables and batches of nothing, and offsets past 2^31.
#include <memory>
#include <string>
#include <vector>

#include "case.hpp"
#include "check_call.hpp"
#include "rankfold/memory.hpp"

namespace rankfold::conformance {

using testing::HostCall;
using testing::HostEntry;
using testing::HostTensor;

namespace {

constexpr Op kOps[] = {Op::shrink, Op::expand, Op::apply_linear, Op::gather_shrink,
                       Op::apply_embedding};

// Weights of an entry in memory of the backend.
struct DeviceEntry {
  std::vector<Buffer> buffers;
  AdapterEntry entry;
};

Status upload(LoraBackend& backend, const HostEntry& source, Stream stream, DeviceEntry& target) {
  target.entry.rank = source.rank;
  target.entry.scaling = source.scaling;
  const auto copy = [&](const HostTensor& tensor, const void*& pointer) -> Status {
    if (!tensor.given()) return {};
    auto buffer = Buffer::create(backend, tensor.bytes.size());
    if (!buffer.ok()) return buffer.status();
    Status status = backend.copy(buffer->data(), tensor.bytes.data(), tensor.bytes.size(),
                                 CopyKind::host_to_device, stream);
    if (status.ok()) status = backend.synchronize(stream);
    pointer = buffer->data();
    target.buffers.push_back(std::move(*buffer));
    return status;
  };
  Status status = copy(source.a, target.entry.a);
  if (status.ok()) status = copy(source.b, target.entry.b);
  return status;
}

// An AdapterTable whose slot 0 holds one adapter, then another, then one that lacks slice 1, then
// none: each step sees what is there at its place in the stream, without waiting between.
Outcome check_table_changes(Session& session) {
  LoraBackend& backend = session.backend();
  CallSpec spec;
  spec.tokens = 9;
  spec.out = {24, 16};
  spec.num_slots = 2;
  spec.ranks = {8, 4};
  spec.slots = SlotPattern::one;
  spec.options.y_mode = YMode::overwrite;
  FilledCall steps[4] = {build(spec, session.seed()), build(spec, session.seed() + 1),
                         build(spec, session.seed() + 2), build(spec, session.seed() + 3)};
  for (FilledCall& step : steps) {
    step.call.x = steps[0].call.x;
    step.call.addressing = steps[0].call.addressing;
  }
  steps[2].call.entries[1] = {};
  steps[3].call.entries[0] = steps[3].call.entries[1] = {};
  for (NamedStream& named : session.streams()) {
    const Stream stream = named.stream.get();
    auto table = AdapterTable::create(backend, steps[0].call.shape);
    if (!table.ok()) return Outcome::fail(table.status().message());
    DeviceEntry entries[4][2];
    std::vector<std::unique_ptr<DeviceCall>> calls;
    for (int i = 0; i < 4; ++i) {
      calls.push_back(std::make_unique<DeviceCall>(backend, steps[i].call));
      Status status = calls.back()->prepare(stream);
      for (int slice = 0; slice < 2 && status.ok(); ++slice) {
        status = upload(backend, steps[i].call.entries[static_cast<std::size_t>(slice)], stream,
                        entries[i][slice]);
      }
      if (!status.ok()) return Outcome::fail(status.message());
    }
    for (int i = 0; i < 4; ++i) {
      Status status;
      if (i == 3) {
        status = table->clear_slot(0, stream);
      } else {
        for (std::int32_t slice = 0; slice < 2 && status.ok(); ++slice) {
          status = table->set_entry(0, 0, slice, entries[i][slice].entry, stream);
        }
      }
      if (!status.ok()) return Outcome::fail(status.message());
      CallArguments arguments = calls[static_cast<std::size_t>(i)]->arguments(stream);
      std::get<ApplyLinearArgs>(arguments.args).table = table->view();
      status = launch(backend, arguments);
      if (!status.ok()) return Outcome::fail(status.message());
    }
    for (int i = 0; i < 4; ++i) {
      steps[i].oracle = testing::compute(steps[i].call);
      const Outcome judged =
          judge_outcome(steps[i], calls[static_cast<std::size_t>(i)]->collect(stream),
                        named.name + " stream, step " + std::to_string(i + 1) + ", ");
      if (!judged.passed()) return judged;
    }
  }
  return {};
}

// Rows so far apart that an offset in elements, and one in bytes, passes 2^31. Only the rows
// themselves are touched.
Outcome check_far_rows(Session& session, bool far_x) {
  LoraBackend& backend = session.backend();
  constexpr std::int64_t kStride = std::int64_t{3} << 28;  // elements
  constexpr std::int64_t kTokens = 4;
  constexpr auto kBytes = static_cast<std::size_t>((kTokens - 1) * kStride + 4096) * 2;
  auto far = Buffer::create(backend, kBytes);
  if (!far.ok()) return Outcome::skip(std::string("no memory for it: ") + far.status().message());
  CallSpec spec;
  spec.tokens = kTokens;
  spec.in = spec.out[0] = 48;
  spec.token_slots = {0, 1, 2, 0};
  const FilledCall filled = build(spec, session.seed());
  const Stream stream = session.stream();
  DeviceCall device(backend, filled.call);
  Status status = device.prepare(stream);
  constexpr std::size_t kRowBytes = 48 * 2;
  HostTensor y = filled.call.y;
  const HostTensor& source = far_x ? filled.call.x : filled.call.y;
  const auto row_at = [&](std::size_t row) {
    return far->as<std::byte>() + row * static_cast<std::size_t>(kStride) * 2;
  };
  for (std::size_t row = 0; row < kTokens && status.ok(); ++row) {
    status = backend.copy(row_at(row), source.bytes.data() + row * kRowBytes, kRowBytes,
                          CopyKind::host_to_device, stream);
  }
  if (!status.ok()) return Outcome::fail(status.message());
  CallArguments arguments = device.arguments(stream);
  auto& args = std::get<ApplyLinearArgs>(arguments.args);
  if (far_x) {
    args.x.data = far->data();
    args.x.strides[0] = kStride;
  } else {
    args.y.data = far->data();
    args.y.strides[0] = kStride;
  }
  status = launch(backend, arguments);
  if (!status.ok()) return Outcome::fail(status.message());
  for (std::size_t row = 0; row < kTokens && status.ok() && !far_x; ++row) {
    status = backend.copy(y.bytes.data() + row * kRowBytes, row_at(row), kRowBytes,
                          CopyKind::device_to_host, stream);
  }
  CallOutcome outcome = device.collect(stream);
  if (!status.ok()) outcome.status = status;
  if (!far_x) outcome.y = y;
  return judge_outcome(filled, outcome, far_x ? "far rows of x, " : "far rows of y, ");
}

// Zero rows with null pointers wherever nothing is to be read or written.
Outcome check_null_of_nothing(Session& session, Op op) {
  CallSpec spec;
  spec.op = op;
  spec.tokens = 0;
  const FilledCall filled = build(spec, session.seed());
  DeviceCall device(session.backend(), filled.call);
  if (Status status = device.prepare(session.stream()); !status.ok()) {
    return Outcome::fail(status.message());
  }
  CallArguments arguments = device.arguments(session.stream());
  std::visit(
      [](auto& args) {
        if constexpr (requires { args.addressing; }) args.addressing.token_slots = nullptr;
        if constexpr (requires { args.x; }) args.x.data = nullptr;
        if constexpr (requires { args.ids; }) args.ids.data = nullptr;
        if constexpr (requires { args.h; }) args.h.data = nullptr;
        if constexpr (requires { args.y; }) args.y.data = nullptr;
      },
      arguments.args);
  const Status status = launch(session.backend(), arguments);
  CallOutcome outcome = device.collect(session.stream());
  if (!status.ok()) outcome.status = status;
  return judge_outcome(filled, outcome, "");
}

}  // namespace

void add_table_cases(CaseList& list) {
  list.scenario("apply_linear/tables/D4_D5_changed_in_place",
                "D4, D5: a slot taken over by another adapter, by one without a slice, and emptied",
                check_table_changes);
  list.scenario(
      "apply_linear/tables/B1_far_rows_of_y", "B1: offsets past 2^31",
      [](Session& session) { return check_far_rows(session, false); }, true);
  list.scenario(
      "apply_linear/tables/B1_far_rows_of_x", "B1: offsets past 2^31",
      [](Session& session) { return check_far_rows(session, true); }, true);
  for (const Op op : kOps) {
    list.scenario(name_of(op) + "/tables/null_without_rows",
                  "C2: without rows every pointer may be null",
                  [op](Session& session) { return check_null_of_nothing(session, op); });
    CallSpec no_rank;
    no_rank.op = op;
    no_rank.ranks = {0};
    no_rank.adjust = [](HostCall& call) {
      call.shape.max_rank = 0;
      if (call.h.given()) call.h = HostTensor(DType::f32, {call.addressing.num_tokens, 0});
    };
    list.call(name_of(op) + "/tables/max_rank_0", "a table without room for any rank", no_rank);
    CallSpec no_slots;
    no_slots.op = op;
    no_slots.num_slots = 0;
    no_slots.token_slots = {0, -1, 1, 0, 0, 2, 0};
    list.call(name_of(op) + "/tables/no_slots", "a table without slots", no_slots);
    no_slots.form = AddressingForm::grouped_by_backend;
    list.call(name_of(op) + "/tables/no_slots_grouped", "a table without slots", no_slots);
  }
}

}  // namespace rankfold::conformance
