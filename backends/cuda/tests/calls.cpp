#include "calls.hpp"

#include <cmath>
#include <random>

namespace rankfold::cuda_test {

using conformance::AddressingForm;
using conformance::CallSpec;

namespace {

constexpr std::uint64_t kFnvBasis = 0xcbf29ce484222325u;

// FNV-1a over the elements that the contract defines.
std::uint64_t digest_of(const conformance::CallOutput& output, std::uint64_t hash) {
  const testing::HostTensor& got = *output.got;
  const std::size_t width = size_of(got.dtype);
  for (std::size_t i = 0; i < got.bytes.size(); ++i) {
    const std::size_t element = i / width;
    if (element < output.expected->region.size() &&
        output.expected->region[element] == testing::Region::unspecified) {
      continue;
    }
    hash = (hash ^ static_cast<std::uint64_t>(got.bytes[i])) * 0x100000001b3u;
  }
  return hash;
}

}  // namespace

std::vector<NamedSpec> every_operation(std::int64_t tokens) {
  CallSpec base;
  base.fill = testing::Fill::random;
  base.tokens = tokens;
  base.in = 256;
  base.out = {128, 64};
  base.num_slots = 4;
  base.ranks = {16, 16, 8, 8, 16, 16, 3, 3};
  base.max_rank = 16;
  std::vector<NamedSpec> specs;
  const auto add = [&](const char* name, Op op, AddressingForm form, auto&& change) {
    CallSpec spec = base;
    spec.op = op;
    spec.form = form;
    change(spec);
    specs.push_back({name, spec});
  };
  const auto nothing = [](CallSpec&) {};
  const auto one_slice = [](CallSpec& spec) {
    spec.out = {128};
    spec.ranks = {16, 8, 16, 3};
  };
  const auto training = [](CallSpec& spec) {
    spec.gives_h = true;
    spec.outputs = kOutputDx | kOutputDa | kOutputDb | kOutputDs;
  };
  add("group_tokens", Op::group_tokens, AddressingForm::tokens, nothing);
  add("shrink", Op::shrink, AddressingForm::tokens, nothing);
  add("expand", Op::expand, AddressingForm::grouped_by_backend, nothing);
  add("apply_linear, tokens", Op::apply_linear, AddressingForm::tokens, nothing);
  add("apply_linear, group_tokens", Op::apply_linear, AddressingForm::grouped_by_backend, nothing);
  add("apply_linear, grouped by the host", Op::apply_linear, AddressingForm::grouped_by_host,
      one_slice);
  add("gather_shrink", Op::gather_shrink, AddressingForm::tokens, one_slice);
  add("apply_embedding", Op::apply_embedding, AddressingForm::grouped_by_backend, one_slice);
  for (const ExpertMode mode : {ExpertMode::grouped, ExpertMode::gather}) {
    const auto experts = [mode](CallSpec& spec) {
      spec.mode = mode;
      spec.x_rows = XRows::token;
      spec.num_experts = 5;
      spec.ranks = {16};
      spec.row_weights = true;
    };
    const bool grouped = mode == ExpertMode::grouped;
    add(grouped ? "apply_experts, grouped" : "apply_experts, gather", Op::apply_experts,
        AddressingForm::tokens, experts);
    add(grouped ? "shrink_experts, grouped" : "shrink_experts, gather", Op::shrink_experts,
        AddressingForm::tokens, experts);
    add(grouped ? "expand_experts, grouped" : "expand_experts, gather", Op::expand_experts,
        AddressingForm::tokens, experts);
  }
  add("forward", Op::forward, AddressingForm::grouped_by_backend, nothing);
  add("backward", Op::backward, AddressingForm::grouped_by_backend, training);
  add("forward_embedding", Op::forward_embedding, AddressingForm::tokens, one_slice);
  add("backward_embedding", Op::backward_embedding, AddressingForm::tokens, [&](CallSpec& spec) {
    one_slice(spec);
    spec.gives_h = true;
    spec.outputs = kOutputDa | kOutputDb;
  });
  return specs;
}

std::vector<std::int32_t> slots_of_round(std::int64_t tokens, int round, Adapters first) {
  std::vector<std::int32_t> slots(static_cast<std::size_t>(tokens));
  std::mt19937 random(static_cast<unsigned>(round));
  const bool one = first == Adapters::one ? round % 2 == 0 : round % 2 == 1;
  const int only = round / 2 % 4;
  for (std::size_t t = 0; t < slots.size(); ++t) {
    if (round % 16 == 15) {
      slots[t] = -1;
    } else if (round % 8 == 7) {
      slots[t] = static_cast<std::int32_t>(random() % 7) - 2;  // -2 to 4: not every one is a slot
    } else {
      slots[t] = one ? only : static_cast<std::int32_t>((t + static_cast<std::size_t>(round)) % 4);
    }
  }
  return slots;
}

RoundCall::RoundCall(const NamedSpec& named, Stream stream) : name_(named.name), spec_(named.spec) {
  // What no row may read at first is read in a later round, by a row with another slot.
  spec_.adjust_data = [](testing::HostCall& call) {
    if (!testing::reads_h(call.op)) return;
    for (std::int64_t i = 0; i < call.h.count(); ++i) {
      if (std::isnan(call.h.get(i))) call.h.set(i, 0.25);
    }
  };
  spec_.token_slots = slots_of_round(spec_.tokens, 0, Adapters::four);
  filled_ = conformance::build(spec_, 1);
  device_ = std::make_unique<conformance::DeviceCall>(device(), filled_.call);
  throw_if_error(device_->prepare(stream));
  throw_if_error(device().synchronize(stream));
}

void RoundCall::set_round(const std::vector<std::int32_t>& slots, std::uint64_t routing_seed,
                          Stream stream) {
  CallSpec other = spec_;
  other.token_slots = slots;
  const testing::HostCall routes = conformance::build_skeleton(other, routing_seed);
  filled_.call.addressing = routes.addressing;
  filled_.call.experts = routes.experts;
  if (spec_.op != Op::group_tokens) filled_.oracle = testing::compute(filled_.call);
  throw_if_error(device_->update(routes.addressing, routes.experts, stream));
}

conformance::Outcome RoundCall::collect(Stream stream, const std::string& where,
                                        std::uint64_t* digest) {
  const conformance::CallOutcome outcome = device_->collect(stream);
  if (digest != nullptr) {
    *digest = kFnvBasis;
    for (const conformance::CallOutput& output : conformance::outputs_of(filled_, outcome)) {
      *digest = digest_of(output, *digest);
    }
  }
  return conformance::judge_outcome(filled_, outcome, where + name_ + ": ");
}

void* RoundCall::slots_address() const { return device_->token_slots(); }

RoundCalls make_calls(const std::vector<NamedSpec>& specs, Stream stream) {
  RoundCalls calls;
  for (const NamedSpec& named : specs) calls.push_back(std::make_unique<RoundCall>(named, stream));
  return calls;
}

}  // namespace rankfold::cuda_test
