#include "step.hpp"

#include <algorithm>

#include "must.hpp"

namespace rankfold::tools {

bool serves_one_adapter(const Workload& point) {
  const std::vector<std::int32_t>& slots = point.token_slots;
  return !slots.empty() && slots.front() >= 0 &&
         std::all_of(slots.begin(), slots.end(),
                     [&](std::int32_t slot) { return slot == slots.front(); });
}

Step::Step(LoraBackend& backend, Stream stream, const Workload& point, Form form)
    : backend_(backend), stream_(stream) {
  if (point.kind == Workload::Kind::moe) {
    set_experts(point);
  } else {
    set_linear(point, form);
  }
  must(backend.synchronize(stream));
}

template <class T>
const T* Step::upload(const std::vector<T>& values) {
  const std::size_t bytes = values.size() * sizeof(T);
  arrays_.push_back(must(Buffer::create(backend_, bytes)));
  must(backend_.copy(arrays_.back().data(), values.data(), bytes, CopyKind::host_to_device,
                     stream_));
  must(backend_.synchronize(stream_));
  return arrays_.back().as<T>();
}

void Step::set_linear(const Workload& point, Form form) {
  const std::vector<std::int32_t>& slots = point.token_slots;
  linear_.num_tokens = point.tokens;
  linear_.device = backend_.device();
  if (serves_one_adapter(point)) {
    linear_.mode = AddressingMode::uniform;
    linear_.uniform_slot = slots.front();
    return;
  }
  if (form == Form::tokens) {
    linear_.token_slots = upload(slots);
    return;
  }
  memory_ = must(Buffer::create(backend_, grouping_bytes(point.tokens, point.adapters)));
  args_.num_tokens = point.tokens;
  args_.num_slots = point.adapters;
  args_.token_slots = upload(slots);
  args_.memory = memory_.data();
  args_.memory_bytes = memory_.bytes();
  args_.device = backend_.device();
  group();
}

void Step::group() { must(group_tokens(backend_, args_, stream_, &linear_)); }

void Step::set_experts(const Workload& point) {
  const Routing& routing = point.routing;
  experts_.x_rows = point.x_rows;
  experts_.num_tokens = point.tokens;
  experts_.num_rows = point.rows();
  experts_.token_slots = upload(routing.token_slots);
  experts_.device = backend_.device();
  const std::vector<BatchRow> rows = batch_rows(point);
  if (point.mul_routed_weight) {
    std::vector<float> weights;
    weights.reserve(rows.size());
    for (const BatchRow& row : rows) weights.push_back(row.weight);
    experts_.row_weights = upload(weights);
  }
  if (!point.sorted_by_expert()) {
    experts_.mode = ExpertMode::gather;
    experts_.top_k = point.top_k;
    experts_.expert_ids = upload(routing.expert_ids);
    return;
  }
  std::vector<std::int32_t> tokens;
  tokens.reserve(rows.size());
  for (const BatchRow& row : rows) tokens.push_back(static_cast<std::int32_t>(row.token));
  experts_.mode = ExpertMode::grouped;
  experts_.expert_offsets = upload(sort_by_expert(routing.expert_ids, point.experts).offsets);
  experts_.row_tokens = upload(tokens);
}

}  // namespace rankfold::tools
