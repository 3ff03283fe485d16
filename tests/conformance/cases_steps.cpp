// Several steps in the same memory, on one stream or two: what a step may not leave behind.
#include <algorithm>
#include <string>

#include "case.hpp"
#include "check_call.hpp"

namespace rankfold::conformance {

using testing::Fill;
using testing::HostAddressing;

namespace {

CallSpec step_spec(Op op, AddressingForm form) {
  CallSpec spec;
  spec.op = op;
  spec.form = form;
  spec.tokens = 24;
  spec.in = 40;
  spec.out = {32};
  spec.num_slots = 4;
  spec.ranks = {8, 3, 16, 5};
  return spec;
}

// The addressing of a spec with other slots.
HostAddressing with_slots(const CallSpec& spec, std::vector<std::int32_t> slots) {
  CallSpec other = spec;
  other.token_slots = std::move(slots);
  return build_skeleton(other, 1).addressing;
}

std::vector<std::int32_t> repeat(std::int64_t tokens, std::vector<std::int32_t> period) {
  std::vector<std::int32_t> slots;
  for (std::int64_t i = 0; i < tokens; ++i) {
    slots.push_back(period[static_cast<std::size_t>(i) % period.size()]);
  }
  return slots;
}

// The steps of one call whose slots change in place; each is judged by its own oracle.
Outcome run_steps(Session& session, const CallSpec& spec,
                  const std::vector<std::vector<std::int32_t>>& steps) {
  Outcome result;
  for (NamedStream& named : session.streams()) {
    const Stream stream = named.stream.get();
    CallSpec first = spec;
    first.token_slots = steps.front();
    FilledCall filled = build(first, session.seed());
    DeviceCall device(session.backend(), filled.call);
    if (Status status = device.prepare(stream); !status.ok())
      return Outcome::fail(status.message());
    for (std::size_t step = 0; step < steps.size(); ++step) {
      if (step > 0) {
        filled.call.addressing = with_slots(spec, steps[step]);
        filled.oracle = testing::compute(filled.call);
        if (Status status = device.update(filled.call.addressing, stream); !status.ok()) {
          return Outcome::fail(status.message());
        }
      }
      const Status status = device.run(stream, filled.call.options);
      CallOutcome outcome = device.collect(stream);
      if (!status.ok()) outcome.status = status;
      const Outcome judged = judge_outcome(
          filled, outcome, named.name + " stream, step " + std::to_string(step + 1) + ", ");
      result.max_error = std::max(result.max_error, judged.max_error);
      if (!judged.passed()) return judged;
    }
  }
  return result;
}

// The same call again and again without touching anything between: the workspace holds what the
// last one left, y what it made.
Outcome run_replays(Session& session, const CallSpec& spec, int replays) {
  for (NamedStream& named : session.streams()) {
    const Stream stream = named.stream.get();
    FilledCall filled = build(spec, session.seed());
    DeviceCall device(session.backend(), filled.call);
    if (Status status = device.prepare(stream); !status.ok())
      return Outcome::fail(status.message());
    for (int i = 0; i < replays; ++i) {
      if (Status status = device.run(stream, filled.call.options); !status.ok()) {
        return Outcome::fail(status.message());
      }
    }
    const CallOutcome outcome = device.collect(stream);
    // By the oracle: y of one step is the input of the next.
    for (int i = 1; i < replays; ++i) {
      for (std::int64_t at = 0; at < filled.call.y.count(); ++at) {
        const auto index = static_cast<std::size_t>(at);
        if (filled.oracle.y.region[index] == testing::Region::computed) {
          filled.call.y.set(at, filled.oracle.y.exact[index]);
        }
      }
      filled.oracle = testing::compute(filled.call);
    }
    if (Outcome judged = judge_outcome(filled, outcome, named.name + " stream, ");
        !judged.passed()) {
      return judged;
    }
  }
  return {};
}

// Sets the dense x, ids or h that the operation reads to zeros: legal, but not what it should read.
Status clear_input(LoraBackend& backend, const DeviceCall& device, Stream stream) {
  const CallArguments arguments = device.arguments(stream);
  const auto clear = [&](const ConstTensorView& view) {
    const std::int64_t count = view.sizes[0] * (view.num_dims == 2 ? view.sizes[1] : 1);
    return backend.fill(const_cast<void*>(view.data), 0,
                        static_cast<std::size_t>(count) * size_of(view.dtype), stream);
  };
  return std::visit(
      [&](const auto& args) -> Status {
        if constexpr (requires { args.x; }) return clear(args.x);
        if constexpr (requires { args.ids; }) return clear(args.ids);
        if constexpr (requires {
                        args.h;
                        args.y;
                      }) {
          return clear(args.h);
        }
        return {};
      },
      arguments.args);
}

// Inputs arrive late on the same stream, behind a large fill; before, there are others.
Outcome run_behind_producer(Session& session, const CallSpec& spec) {
  for (NamedStream& named : session.streams()) {
    const Stream stream = named.stream.get();
    const FilledCall filled = build(spec, session.seed());
    constexpr std::size_t kSlowBytes = std::size_t{32} << 20;
    auto slow = Buffer::create(session.backend(), kSlowBytes);
    if (!slow.ok()) return Outcome::fail(slow.status().message());
    DeviceCall device(session.backend(), filled.call);
    Status status = device.prepare(stream);
    if (status.ok()) status = clear_input(session.backend(), device, stream);
    if (status.ok()) status = session.backend().synchronize(stream);
    for (int i = 0; i < 3 && status.ok(); ++i) {
      status = session.backend().fill(slow->data(), 0xff, kSlowBytes, stream);
    }
    if (status.ok()) status = device.reset(stream);
    if (status.ok()) status = device.run(stream, filled.call.options);
    CallOutcome outcome = device.collect(stream);
    if (!status.ok()) outcome.status = status;
    if (Outcome judged = judge_outcome(filled, outcome, named.name + " stream, ");
        !judged.passed()) {
      return judged;
    }
  }
  return {};
}

// Two streams of one kind, each with its own call, step by step at once.
Outcome run_two_streams(Session& session, const CallSpec& spec, int rounds) {
  LoraBackend& backend = session.backend();
  auto second = OwnedStream::create(backend, StreamMode::worker);
  if (!second.ok()) second = OwnedStream::create(backend);
  if (!second.ok()) return Outcome::fail(second.status().message());
  CallSpec other = spec;
  other.ranks = {5, 16, 2, 9};
  const FilledCall filled[2] = {build(spec, session.seed()), build(other, session.seed() + 1)};
  DeviceCall one(backend, filled[0].call), two(backend, filled[1].call);
  DeviceCall* const calls[2] = {&one, &two};
  const Stream streams[2] = {session.stream(), second->get()};
  for (int i = 0; i < 2; ++i) {
    if (Status status = calls[i]->prepare(streams[i]); !status.ok()) {
      return Outcome::fail(status.message());
    }
  }
  for (int round = 0; round < rounds; ++round) {
    for (int i = 0; i < 2; ++i) {
      const Status status = calls[i]->run(streams[i], filled[i].call.options);
      if (!status.ok()) return Outcome::fail(status.message());
    }
  }
  for (int i = 0; i < 2; ++i) {
    const Outcome judged = judge_outcome(filled[i], calls[i]->collect(streams[i]),
                                         "stream " + std::to_string(i + 1) + " of 2, ");
    if (!judged.passed()) return judged;
  }
  return {};
}

}  // namespace

void add_step_cases(CaseList& list) {
  for (const Op op :
       {Op::shrink, Op::expand, Op::apply_linear, Op::gather_shrink, Op::apply_embedding}) {
    for (const auto& [form, form_name] :
         {std::pair{AddressingForm::tokens, "tokens"},
          {AddressingForm::grouped_by_host, "grouped_by_host"},
          {AddressingForm::grouped_by_backend, "grouped_by_backend"}}) {
      const CallSpec spec = step_spec(op, form);
      const std::string end = std::string("/") + form_name;
      list.scenario(name_of(op) + "/steps/C1_all_base_after_adapters" + end,
                    "C1: a batch without adapters gets none of the batch before",
                    [spec](Session& session) {
                      return run_steps(session, spec,
                                       {repeat(spec.tokens, {0, 0, 1}), repeat(spec.tokens, {-1}),
                                        repeat(spec.tokens, {2, -1})});
                    });
      list.scenario(name_of(op) + "/steps/D1_number_of_adapters" + end,
                    "D1: 1 adapter, then 4, then 1 in the same memory", [spec](Session& session) {
                      return run_steps(session, spec,
                                       {repeat(spec.tokens, {1}), repeat(spec.tokens, {0, 1, 2, 3}),
                                        repeat(spec.tokens, {3}), repeat(spec.tokens, {2, 0})});
                    });
      list.scenario(name_of(op) + "/steps/replay" + end,
                    "a replay finds the workspace as the last one left it",
                    [spec](Session& session) { return run_replays(session, spec, 5); });
    }
    CallSpec spec = step_spec(op, AddressingForm::tokens);
    list.scenario(name_of(op) + "/steps/D11_behind_producer",
                  "D11: an operation waits for what its stream did before",
                  [spec](Session& session) { return run_behind_producer(session, spec); });
    spec.options.y_mode = testing::makes_y(op) ? YMode::overwrite : YMode::accumulate;
    spec.tokens = 40;
    list.scenario(name_of(op) + "/steps/D12_two_streams",
                  "D12: two streams at once share no scratch",
                  [spec](Session& session) { return run_two_streams(session, spec, 100); });
  }
}

}  // namespace rankfold::conformance
