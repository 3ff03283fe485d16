// One call of every operation, in the sizes of several regimes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "conformance/check_call.hpp"
#include "conformance/device_call.hpp"
#include "device.hpp"

namespace rankfold::cuda_test {

struct NamedSpec {
  std::string name;
  conformance::CallSpec spec;
};

/// Every operation, bf16 throughout with aligned sizes, so that fast strategies take them; four
/// slots of ranks 16, 8, 16 and 3. Experts twice: grouped and gather. `tokens` chooses the regime.
std::vector<NamedSpec> every_operation(std::int64_t tokens);

/// Slots of a round: one adapter, all four, none, or a mixture, in turn.
enum class Adapters { one, four };
std::vector<std::int32_t> slots_of_round(std::int64_t tokens, int round, Adapters first);

/// A call whose slots and routes change in place from round to round, with what must come out.
class RoundCall {
 public:
  /// Uploads everything; the first round's slots are all valid. Waits.
  RoundCall(const NamedSpec& named, Stream stream);

  const std::string& name() const { return name_; }
  /// New slots and routes at their old addresses, everything else as at first. Enqueued.
  void set_round(const std::vector<std::int32_t>& slots, std::uint64_t routing_seed, Stream stream);
  /// Everything as at the beginning of the round. Enqueued.
  void reset(Stream stream) { throw_if_error(device_->reset(stream)); }
  /// group_tokens where the call asks for it, then the operation.
  Status run(Stream stream, Overlap overlap = Overlap::on) {
    CallOptions options = filled_.call.options;
    options.overlap = overlap;
    return device_->run(stream, options);
  }
  /// Waits, and judges by the oracle; `digest` gets that of all defined output bits.
  conformance::Outcome collect(Stream stream, const std::string& where, std::uint64_t* digest);
  /// Where the call reads its slots, on the device; null where it reads none.
  void* slots_address() const;
  /// All memory of the call, tables and addressing among it.
  void* memory() const noexcept { return device_->memory(); }
  std::size_t memory_bytes() const noexcept { return device_->memory_bytes(); }
  conformance::CallArguments arguments(Stream stream) const { return device_->arguments(stream); }

 private:
  std::string name_;
  conformance::CallSpec spec_;
  conformance::FilledCall filled_;
  std::unique_ptr<conformance::DeviceCall> device_;
};
using RoundCalls = std::vector<std::unique_ptr<RoundCall>>;

RoundCalls make_calls(const std::vector<NamedSpec>& specs, Stream stream);

}  // namespace rankfold::cuda_test
