#include <cstdio>
#include <deque>
#include <limits>
#include <string>
#include <vector>

#include "case_file.hpp"
#include "check_call.hpp"
#include "rankfold/safetensors.hpp"

namespace rankfold::conformance {

using testing::HostCall;
using testing::HostEntry;
using testing::HostTensor;

namespace {

// Owns the names and values that the writer's views point to.
class Writer {
 public:
  void attribute(std::string name, std::string value) {
    texts_.push_back(std::move(name));
    const char* const key = texts_.back().c_str();
    texts_.push_back(std::move(value));
    metadata_.push_back({key, texts_.back().c_str()});
  }
  void tensor(std::string name, HostTensor value) {
    if (!value.given()) return;
    texts_.push_back(std::move(name));
    values_.push_back(std::move(value));
    const HostTensor& kept = values_.back();
    SafetensorsTensor tensor;
    tensor.name = texts_.back().c_str();
    tensor.dtype = kept.dtype;
    tensor.num_dims = static_cast<std::int32_t>(kept.sizes.size());
    for (std::size_t i = 0; i < kept.sizes.size(); ++i) tensor.sizes[i] = kept.sizes[i];
    tensor.data = kept.bytes.data();
    tensors_.push_back(tensor);
  }
  template <class T>
  void values(std::string name, const std::vector<T>& numbers) {
    tensor(std::move(name), testing::host_vector<T>(std::span<const T>(numbers)));
  }
  Status write(std::string_view path) const { return write_safetensors(path, tensors_, metadata_); }

 private:
  std::deque<std::string> texts_;
  std::deque<HostTensor> values_;
  std::vector<SafetensorsTensor> tensors_;
  std::vector<SafetensorsMetadata> metadata_;
};

// The exact values; where h is unspecified, 0, which is not compared.
HostTensor exact_values(const testing::Expected& expected, const HostTensor& before) {
  HostTensor exact(DType::f64, before.sizes);
  for (std::int64_t i = 0; i < exact.count(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    switch (expected.region[at]) {
      case testing::Region::computed:
        exact.set(i, expected.exact[at]);
        break;
      case testing::Region::unchanged:
        exact.set(i, before.get(i));
        break;
      case testing::Region::zero:
      case testing::Region::unspecified:
        exact.set(i, 0);
        break;
    }
  }
  return exact;
}

void write_addressing(Writer& writer, const HostCall& call) {
  const auto& addressing = call.addressing;
  const bool grouped = addressing.mode == AddressingMode::grouped &&
                       addressing.grouping == testing::Grouping::by_host;
  if (addressing.mode == AddressingMode::uniform) {
    writer.attribute("addressing", "uniform");
    writer.attribute("uniform_slot", std::to_string(addressing.uniform_slot));
  } else if (grouped) {
    writer.attribute("addressing", "grouped");
    writer.values("token_order", addressing.token_order);
    writer.values("segment_offsets", addressing.segment_offsets);
    writer.values("segment_slots", addressing.segment_slots);
    writer.values("num_segments", std::vector<std::int32_t>{addressing.num_segments});
  } else {
    writer.values("token_slots", addressing.token_slots);
  }
}

void write_experts(Writer& writer, const HostCall& call) {
  const testing::HostExperts& experts = call.experts;
  writer.attribute("mode", experts.mode == ExpertMode::grouped ? "grouped" : "gather");
  writer.attribute("x_rows", experts.x_rows == XRows::own ? "own" : "token");
  if (experts.mode == ExpertMode::grouped) {
    writer.values("expert_offsets", experts.expert_offsets);
    if (!experts.row_tokens.empty()) writer.values("row_tokens", experts.row_tokens);
  } else {
    writer.values("expert_ids", experts.expert_ids);
    writer.attribute("top_k", std::to_string(experts.top_k));
    writer.attribute("expert_base", std::to_string(experts.expert_base));
  }
  writer.attribute("row_begin", std::to_string(experts.row_begin));
  writer.attribute("row_end", std::to_string(experts.row_end));
  if (!call.addressing.token_slots.empty()) {
    writer.values("token_slots", call.addressing.token_slots);
  }
  if (!experts.row_weights.empty() && testing::makes_y(call.op)) {
    writer.values("row_weights", experts.row_weights);
  }
}

// A number that reads back as the same float.
std::string text_of(float value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.9g", static_cast<double>(value));
  return text;
}

void write_training(Writer& writer, const HostCall& call) {
  if (!testing::has_ids(call.op)) {
    writer.attribute("dropout_p", text_of(call.dropout.p));
    writer.attribute("seed", std::to_string(call.dropout.seed));
    writer.attribute("row_base", std::to_string(call.dropout.row_base));
  }
  if (!testing::is_backward(call.op)) return;
  writer.tensor("dy", call.dy);
  const bool adds = call.gradient_mode == YMode::accumulate;
  writer.attribute("accumulate", adds ? "1" : "0");
  std::string outputs;
  const auto name = [&](const char* one, bool wanted) {
    if (wanted) outputs += (outputs.empty() ? "" : ",") + std::string(one);
  };
  name("dx", call.dx.given());
  name("da", call.wants_da);
  name("db", call.wants_db);
  name("dbias", call.wants_dbias);
  writer.attribute("outputs", outputs);
  if (call.options.y_mode == YMode::accumulate) writer.tensor("dx", call.dx);
  for (std::size_t e = 0; adds && e < call.gradients.size(); ++e) {
    const std::string at = testing::entry_name(call, e);
    writer.tensor("da." + at, call.gradients[e].da);
    writer.tensor("db." + at, call.gradients[e].db);
    writer.tensor("dbias." + at, call.gradients[e].dbias);
  }
}

void write_entries(Writer& writer, const HostCall& call) {
  const TableShape& shape = call.shape;
  const bool experts = testing::is_experts(call.op);
  HostTensor scalings(
      DType::f32,
      experts ? std::vector<std::int64_t>{shape.num_slots, shape.num_experts, shape.num_slices}
              : std::vector<std::int64_t>{shape.num_slots, shape.num_slices});
  for (std::size_t e = 0; e < call.entries.size(); ++e) {
    const HostEntry& entry = call.entries[e];
    const auto index = static_cast<std::int64_t>(e);
    const std::string at = testing::entry_name(call, e);
    scalings.set(index, entry.scaling);
    if (entry.rank == 0) continue;
    writer.tensor("a." + at, a_of(call, entry));
    writer.tensor("b." + at, entry.b);
    if (testing::uses_bias(call.op)) writer.tensor("bias." + at, entry.bias);
  }
  writer.tensor("scalings", std::move(scalings));
  writer.attribute("max_rank", std::to_string(shape.max_rank));
  if (testing::uses_b(call.op) && !testing::has_ids(call.op)) {
    std::string widths;
    for (std::int32_t i = 0; i < shape.num_slices; ++i) {
      widths += (i > 0 ? "," : "") + std::to_string(shape.out[i]);
    }
    writer.attribute("out_slices", widths);
  }
}

void write_options(Writer& writer, const HostCall& call) {
  const bool has_mode = !testing::is_backward(call.op) || call.dx.given();
  if (has_mode) writer.attribute("y_mode", to_string(call.options.y_mode));
  writer.attribute("strategy", to_string(call.options.strategy));
  writer.attribute("batch_invariant",
                   call.options.batch_invariant == BatchInvariant::on ? "1" : "0");
  if (call.x_row_stride >= 0) writer.attribute("x_row_stride", std::to_string(call.x_row_stride));
  if (call.y_row_stride >= 0) writer.attribute("y_row_stride", std::to_string(call.y_row_stride));
}

void write_grouping(Writer& writer, const HostCall& call) {
  writer.values("token_slots", call.addressing.token_slots);
  writer.attribute("num_slots", std::to_string(call.shape.num_slots));
  auto exact = call.addressing;
  testing::group_on_host(exact, call.shape.num_slots);
  if (exact.num_tokens == 0) return;
  const auto segments = static_cast<std::size_t>(exact.num_segments);
  exact.token_order.resize(static_cast<std::size_t>(exact.segment_offsets[segments]));
  exact.segment_offsets.resize(segments + 1);
  exact.segment_slots.resize(segments);
  writer.values("expect.token_order", exact.token_order);
  writer.values("expect.segment_offsets", exact.segment_offsets);
  writer.values("expect.segment_slots", exact.segment_slots);
  writer.values("expect.num_segments", std::vector<std::int32_t>{exact.num_segments});
}

}  // namespace

Status write_case(const FilledCall& filled, std::string_view path) {
  const HostCall& call = filled.call;
  Writer writer;
  writer.attribute("format", "rankfold-case-1");
  writer.attribute("op", to_string(call.op));
  if (call.op == Op::group_tokens) {
    write_grouping(writer, call);
    return writer.write(path);
  }
  if (testing::has_ids(call.op)) writer.attribute("vocab", std::to_string(call.shape.in));
  writer.tensor("x", call.x);
  writer.tensor("ids", call.ids);
  if (testing::reads_h(call.op)) writer.tensor("h", call.h);
  writer.tensor("y", call.y);
  if (testing::is_experts(call.op)) {
    write_experts(writer, call);
  } else {
    write_addressing(writer, call);
  }
  if (call.op >= Op::forward) write_training(writer, call);
  if (!call.addressing.token_weights.empty() &&
      (testing::makes_y(call.op) || testing::is_backward(call.op))) {
    writer.values("token_weights", call.addressing.token_weights);
  }
  write_entries(writer, call);
  write_options(writer, call);
  if (call.tolerance == testing::Tolerance::exact) writer.attribute("tolerance", "exact");
  if (call.expect_status) {
    writer.attribute("expect_status", to_string(*call.expect_status));
    return writer.write(path);
  }
  for (const CallOutput& output : outputs_of(filled, {})) {
    writer.tensor("expect." + output.name, exact_values(*output.expected, *output.before));
  }
  return writer.write(path);
}

}  // namespace rankfold::conformance
