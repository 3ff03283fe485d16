// What a call needs in memory, and the arrays of pointers in it.
#include <cstring>

#include "device_call.hpp"

namespace rankfold::conformance {

using testing::Grouping;
using testing::GuardedImage;
using testing::host_vector;
using testing::HostAddressing;
using testing::HostEntry;
using testing::HostExperts;
using testing::HostGradient;
using testing::HostTensor;
using testing::make_image;
using testing::make_raw_image;

void DeviceCall::plan() {
  if (!pieces_.empty()) return;
  const std::int64_t shift = call_.misalignment;
  if (call_.x.given()) x_ = add(make_image("x", call_.x, call_.x_row_stride, shift));
  if (call_.ids.given()) ids_ = add(make_image("ids", call_.ids, -1, shift));
  if (call_.h.given()) {
    GuardedImage image = make_image("h", call_.h, call_.h_row_stride, shift);
    image.writable = testing::makes_h(call_.op);
    h_ = add(std::move(image));
  }
  if (call_.y.given()) y_ = add_writable(make_image("y", call_.y, call_.y_row_stride, shift));
  if (call_.dy.given()) dy_ = add(make_image("dy", call_.dy, call_.y_row_stride, shift));
  if (call_.dx.given()) dx_ = add_writable(make_image("dx", call_.dx, call_.dx_row_stride, shift));
  if (call_.ds.given()) ds_ = add_writable(make_image("ds", call_.ds, call_.ds_row_stride, shift));
  if (testing::is_experts(call_.op)) {
    plan_experts();
  } else {
    plan_addressing();
  }
  if (!call_.addressing.token_weights.empty()) {
    token_weights_ = add(make_image("token_weights", host_vector(call_.addressing.token_weights)));
  }
  plan_entries();
  plan_gradients();
}

void DeviceCall::plan_addressing() {
  const HostAddressing& addressing = call_.addressing;
  const bool by_backend =
      addressing.mode == AddressingMode::grouped && addressing.grouping == Grouping::by_backend;
  if (addressing.mode == AddressingMode::tokens || by_backend) {
    token_slots_ = add(make_image("token_slots", host_vector(addressing.token_slots)));
  }
  if (by_backend || call_.op == Op::group_tokens) {
    grouping_ = add(make_raw_image("grouping memory",
                                   grouping_bytes(addressing.num_tokens, call_.shape.num_slots)));
  } else if (addressing.mode == AddressingMode::grouped) {
    token_order_ = add(make_image("token_order", host_vector(addressing.token_order)));
    segment_offsets_ = add(make_image("segment_offsets", host_vector(addressing.segment_offsets)));
    segment_slots_ = add(make_image("segment_slots", host_vector(addressing.segment_slots)));
    num_segments_ = add(make_image(
        "num_segments", host_vector(std::vector<std::int32_t>{addressing.num_segments})));
  }
}

void DeviceCall::plan_experts() {
  const HostExperts& experts = call_.experts;
  const auto array = [&](const char* name, const auto& values) {
    return values.empty() ? kNone : add(make_image(name, host_vector(values)));
  };
  token_slots_ = array("token_slots", call_.addressing.token_slots);
  expert_offsets_ = array("expert_offsets", experts.expert_offsets);
  row_tokens_ = array("row_tokens", experts.row_tokens);
  expert_ids_ = array("expert_ids", experts.expert_ids);
  row_weights_ = array("row_weights", experts.row_weights);
}

void DeviceCall::plan_entries() {
  const auto pad = [](const HostTensor& tensor, std::int64_t padding) {
    return padding > 0 ? tensor.columns() + padding : -1;
  };
  a_.assign(call_.entries.size(), kNone);
  b_.assign(call_.entries.size(), kNone);
  bias_.assign(call_.entries.size(), kNone);
  for (std::size_t e = 0; e < call_.entries.size(); ++e) {
    const HostEntry& entry = call_.entries[e];
    const std::string at = "." + testing::entry_name(call_, e);
    if (entry.a.given()) a_[e] = add(make_image("a" + at, entry.a, pad(entry.a, call_.a_padding)));
    if (entry.b.given()) b_[e] = add(make_image("b" + at, entry.b, pad(entry.b, call_.b_padding)));
    if (entry.bias.given()) bias_[e] = add(make_image("bias" + at, entry.bias));
  }
  for (std::size_t e = 0; e < call_.entries.size(); ++e) {
    const std::int64_t shared = call_.entries[e].shared_a;
    if (shared >= 0) a_[e] = a_[static_cast<std::size_t>(shared)];
  }
  if (call_.entries.empty()) return;
  const std::int64_t stride =
      std::int64_t{call_.shape.num_experts} * call_.shape.num_slices + call_.slot_padding;
  const auto bytes =
      static_cast<std::size_t>(call_.shape.num_slots * stride) * sizeof(AdapterEntry);
  GuardedImage image = make_raw_image("adapter entries", bytes);
  image.writable = false;
  table_ = add(std::move(image));
}

void DeviceCall::plan_gradients() {
  const std::size_t count = call_.gradients.size();
  da_.assign(count, kNone);
  db_.assign(count, kNone);
  dbias_.assign(count, kNone);
  for (std::size_t e = 0; e < count; ++e) {
    const HostGradient& gradient = call_.gradients[e];
    const auto one = [&](const char* name, const HostTensor& tensor) {
      if (!tensor.given()) return kNone;
      return add_writable(make_image(name + testing::entry_name(call_, e), tensor));
    };
    da_[e] = one("da.", gradient.da);
    db_[e] = one("db.", gradient.db);
    dbias_[e] = one("dbias.", gradient.dbias);
  }
  for (std::size_t e = 0; e < count; ++e) {
    const std::int64_t shared = call_.gradients[e].shared_da;
    if (shared >= 0) da_[e] = da_[static_cast<std::size_t>(shared)];
  }
  const auto array = [&](const char* name, bool wanted) {
    if (!wanted) return kNone;
    GuardedImage image = make_raw_image(name, call_.entries.size() * sizeof(float*));
    image.writable = false;
    return add(std::move(image));
  };
  da_array_ = array("grads.da", call_.wants_da);
  db_array_ = array("grads.db", call_.wants_db);
  dbias_array_ = array("grads.dbias", call_.wants_dbias);
}

void DeviceCall::write_entries() {
  if (table_ == kNone) return;
  const AdapterTableView view = table();
  GuardedImage& image = pieces_[table_].image;
  for (std::int64_t slot = 0; slot < call_.shape.num_slots; ++slot) {
    for (std::int64_t expert = 0; expert < call_.shape.num_experts; ++expert) {
      for (std::int64_t slice = 0; slice < call_.shape.num_slices; ++slice) {
        const auto e =
            static_cast<std::size_t>(testing::entry_index(call_.shape, slot, expert, slice));
        const HostEntry& source = call_.entries[e];
        AdapterEntry entry;
        entry.rank = source.rank;
        entry.scaling = source.scaling;
        entry.a = pointer<const void>(a_[e]);
        entry.b = pointer<const void>(b_[e]);
        entry.bias = pointer<const float>(bias_[e]);
        const HostTensor& a = a_of(call_, source);
        entry.in_limit = a.given() ? a.columns() : call_.shape.in;
        entry.a_row_stride = entry.in_limit + call_.a_padding;
        entry.b_row_stride = source.rank + call_.b_padding;
        const auto at = static_cast<std::size_t>(entry_index(view, slot, expert, slice));
        std::memcpy(image.bytes.data() + image.offset + at * sizeof entry, &entry, sizeof entry);
      }
    }
  }
}

void DeviceCall::write_gradients() {
  const auto write = [&](Index array, const std::vector<Index>& gradients) {
    if (array == kNone) return;
    GuardedImage& image = pieces_[array].image;
    for (std::size_t e = 0; e < call_.entries.size(); ++e) {
      float* const address = e < gradients.size() ? pointer<float>(gradients[e]) : nullptr;
      std::memcpy(image.bytes.data() + image.offset + e * sizeof address, &address, sizeof address);
    }
  };
  write(da_array_, da_);
  write(db_array_, db_);
  write(dbias_array_, dbias_);
}

}  // namespace rankfold::conformance
