// The debug calls: they alone read device data on the host, and they alone wait.
#include <cinttypes>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "guard.hpp"
#include "rankfold/operations.hpp"
#include "validate_check.hpp"

RANKFOLD_NAMESPACE_BEGIN

using detail::Check;
using detail::guarded;

namespace {

constexpr auto kInvalid = StatusCode::invalid_argument;

/// Copies device arrays to the host; the first error stays.
class Reader {
 public:
  Reader(LoraBackend& backend, Stream stream, Status* status) noexcept
      : backend_(backend), stream_(stream), status_(status) {}

  /// The first `count` elements; empty when null or after an error.
  template <class T>
  std::vector<T> read(const T* data, std::int64_t count) {
    std::vector<T> host;
    if (data == nullptr || count <= 0 || !status_->ok()) return host;
    host.resize(static_cast<std::size_t>(count));
    *status_ = backend_.copy(host.data(), data, host.size() * sizeof(T), CopyKind::device_to_host,
                             stream_);
    if (status_->ok()) *status_ = backend_.synchronize(stream_);
    if (!status_->ok()) host.clear();
    return host;
  }

 private:
  LoraBackend& backend_;
  Stream stream_;
  Status* status_;
};

// Element i must be -1 or in [0, count).
bool slots_in_range(Check& check, const char* name, const std::vector<std::int32_t>& slots,
                    std::int32_t num_slots) {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] >= -1 && slots[i] < num_slots) continue;
    return check.fail(kInvalid, "%s[%zu] is %d; it should be -1 or 0 to %d", name, i, slots[i],
                      num_slots - 1);
  }
  return true;
}

bool weights_are_finite(Check& check, const char* name, const std::vector<float>& weights) {
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (std::isfinite(weights[i])) continue;
    return check.fail(kInvalid, "%s[%zu] is %g; it should be finite", name, i,
                      static_cast<double>(weights[i]));
  }
  return true;
}

bool offsets_ascend(Check& check, const char* name, const std::vector<std::int32_t>& offsets,
                    std::int64_t num_rows) {
  std::int32_t before = 0;
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    if (offsets[i] < before || offsets[i] > num_rows) {
      return check.fail(kInvalid, "%s[%zu] is %d; it should be %d to %" PRId64, name, i, offsets[i],
                        before, num_rows);
    }
    before = offsets[i];
  }
  return true;
}

bool grouped_form(Check& check, Reader& reader, const Status& status,
                  const LoraAddressing& addressing, std::int32_t num_slots) {
  const auto count = reader.read(addressing.num_segments, 1);
  if (count.empty()) return status.ok();
  if (count[0] < 0 || count[0] > addressing.max_segments) {
    return check.fail(
        kInvalid, "addressing.num_segments[0] is %d; it should be 0 to %" PRId64 " (max_segments)",
        count[0], addressing.max_segments);
  }
  const auto offsets = reader.read(addressing.segment_offsets, std::int64_t{count[0]} + 1);
  const auto slots = reader.read(addressing.segment_slots, count[0]);
  if (!status.ok()) return false;
  if (!offsets_ascend(check, "addressing.segment_offsets", offsets, addressing.num_tokens) ||
      !slots_in_range(check, "addressing.segment_slots", slots, num_slots)) {
    return false;
  }
  const auto order = reader.read(addressing.token_order, offsets.back());
  if (!status.ok()) return false;
  std::vector<std::int32_t> seen_at(static_cast<std::size_t>(addressing.num_tokens), -1);
  for (auto i = static_cast<std::size_t>(offsets.front()); i < order.size(); ++i) {
    const std::int32_t row = order[i];
    if (row < 0 || row >= addressing.num_tokens) {
      return check.fail(kInvalid, "addressing.token_order[%zu] is %d; it should be 0 to %" PRId64,
                        i, row, addressing.num_tokens - 1);
    }
    std::int32_t& first = seen_at[static_cast<std::size_t>(row)];
    if (first >= 0) {
      return check.fail(kInvalid,
                        "addressing.token_order[%zu] is %d, as token_order[%d] is; a row should "
                        "stand in one segment at most",
                        i, row, first);
    }
    first = static_cast<std::int32_t>(i);
  }
  return true;
}

bool slot_count(Check& check, std::int32_t num_slots) {
  return num_slots >= 0 ||
         check.fail(kInvalid, "num_slots is %d; it should be 0 or more", num_slots);
}

bool stream_given(Check& check, Stream stream) {
  return stream.handle != nullptr ||
         check.fail(kInvalid,
                    "stream is null; it should be a stream of the backend or of the host");
}

// Local experts of the rows: ids may name experts of other shards, and -1 means none.
bool expert_ids_in_range(Check& check, const std::vector<std::int32_t>& ids) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= -1) continue;
    return check.fail(kInvalid, "addressing.expert_ids[%zu] is %d; it should be -1 or an expert", i,
                      ids[i]);
  }
  return true;
}

bool row_tokens_in_range(Check& check, const std::vector<std::int32_t>& tokens,
                         std::int64_t num_tokens) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0 && tokens[i] < num_tokens) continue;
    return check.fail(kInvalid, "addressing.row_tokens[%zu] is %d; it should be 0 to %" PRId64, i,
                      tokens[i], num_tokens - 1);
  }
  return true;
}

}  // namespace

Status check_addressing(LoraBackend& backend, const LoraAddressing& addressing,
                        std::int32_t num_slots, Stream stream) noexcept {
  return guarded([&]() -> Status {
    Status status;
    Check check("check_addressing", backend.device(), &status);
    if (!check.addressing(addressing) || !slot_count(check, num_slots) ||
        !stream_given(check, stream)) {
      return status;
    }
    Reader reader(backend, stream, &status);
    bool good = true;
    switch (addressing.mode) {
      case AddressingMode::tokens: {
        const auto slots = reader.read(addressing.token_slots, addressing.num_tokens);
        good = status.ok() && slots_in_range(check, "addressing.token_slots", slots, num_slots);
        break;
      }
      case AddressingMode::grouped:
        if (addressing.num_tokens > 0) {
          good = grouped_form(check, reader, status, addressing, num_slots);
        }
        break;
      case AddressingMode::uniform:
        if (addressing.uniform_slot < -1 || addressing.uniform_slot >= num_slots) {
          good = check.fail(kInvalid, "addressing.uniform_slot is %d; it should be -1 or 0 to %d",
                            addressing.uniform_slot, num_slots - 1);
        }
        break;
    }
    if (!good) return status;
    const auto weights = reader.read(addressing.token_weights, addressing.num_tokens);
    if (status.ok()) (void)weights_are_finite(check, "addressing.token_weights", weights);
    return status;
  });
}

Status check_addressing(LoraBackend& backend, const ExpertAddressing& addressing,
                        std::int32_t num_slots, std::int32_t num_experts, Stream stream) noexcept {
  return guarded([&]() -> Status {
    Status status;
    Check check("check_addressing", backend.device(), &status);
    if (num_experts < 1) {
      check.fail(kInvalid, "num_experts is %d; it should be 1 or more", num_experts);
      return status;
    }
    TableShape shape;
    shape.num_experts = num_experts;
    if (!check.addressing(addressing, shape) || !slot_count(check, num_slots) ||
        !stream_given(check, stream)) {
      return status;
    }
    Reader reader(backend, stream, &status);
    std::int64_t num_rows = addressing.num_rows;  // those that the arrays define
    bool good = true;
    if (num_rows > 0 && addressing.mode == ExpertMode::grouped) {
      const auto offsets = reader.read(addressing.expert_offsets, std::int64_t{num_experts} + 1);
      if (!status.ok()) return status;
      if (!offsets_ascend(check, "addressing.expert_offsets", offsets, num_rows)) return status;
      num_rows = offsets.back();
      const auto tokens = reader.read(addressing.row_tokens, num_rows);
      good = status.ok() && row_tokens_in_range(check, tokens, addressing.num_tokens);
    } else if (addressing.mode == ExpertMode::gather) {
      const auto ids = reader.read(addressing.expert_ids, num_rows);
      good = status.ok() && expert_ids_in_range(check, ids);
    }
    if (!good) return status;
    const auto slots = reader.read(addressing.token_slots, addressing.num_tokens);
    const auto row_weights = reader.read(addressing.row_weights, num_rows);
    const auto token_weights = reader.read(addressing.token_weights, addressing.num_tokens);
    if (!status.ok()) return status;
    (void)(slots_in_range(check, "addressing.token_slots", slots, num_slots) &&
           weights_are_finite(check, "addressing.row_weights", row_weights) &&
           weights_are_finite(check, "addressing.token_weights", token_weights));
    return status;
  });
}

namespace {

template <class T>
bool ids_in_range(Check& check, const std::vector<T>& ids, std::int64_t in) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < in) continue;
    return check.fail(kInvalid, "ids[%zu] is %" PRId64 "; it should be 0 to %" PRId64, i,
                      static_cast<std::int64_t>(ids[i]), in - 1);
  }
  return true;
}

}  // namespace

Status check_ids(LoraBackend& backend, const ConstTensorView& ids, std::int64_t in,
                 Stream stream) noexcept {
  return guarded([&]() -> Status {
    Status status;
    Check check("check_ids", backend.device(), &status);
    const std::int64_t count = ids.num_dims == 1 ? ids.sizes[0] : 0;
    if (count < 0) {
      check.fail(kInvalid, "ids has %" PRId64 " elements; it should have 0 or more", count);
      return status;
    }
    if (!check.ids(ids, count) || !stream_given(check, stream)) return status;
    if (in < 1) {
      check.fail(kInvalid, "in is %" PRId64 "; it should be 1 or more", in);
      return status;
    }
    Reader reader(backend, stream, &status);
    if (ids.dtype == DType::i32) {
      const auto host = reader.read(static_cast<const std::int32_t*>(ids.data), count);
      if (status.ok()) (void)ids_in_range(check, host, in);
    } else {
      const auto host = reader.read(static_cast<const std::int64_t*>(ids.data), count);
      if (status.ok()) (void)ids_in_range(check, host, in);
    }
    return status;
  });
}

RANKFOLD_NAMESPACE_END
