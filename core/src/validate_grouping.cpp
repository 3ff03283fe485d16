#include <cinttypes>
#include <limits>

#include "rankfold/addressing.hpp"
#include "rankfold/validate.hpp"
#include "validate_check.hpp"
#include "validate_overlap.hpp"

RANKFOLD_NAMESPACE_BEGIN

using detail::Check;

Status validate(const GroupTokensArgs& args, Device device) noexcept {
  constexpr auto kInvalid = StatusCode::invalid_argument;
  constexpr std::int64_t kMaxTokens = std::numeric_limits<std::int32_t>::max();
  Status status;
  Check check(Op::group_tokens, device, &status);
  if (args.num_tokens < 0 || args.num_tokens > kMaxTokens) {
    check.fail(kInvalid,
               "num_tokens is %" PRId64 "; it should be 0 to %" PRId64 " (row numbers are int32)",
               args.num_tokens, kMaxTokens);
    return status;
  }
  if (args.num_slots < 0) {
    check.fail(kInvalid, "num_slots is %d; it should be 0 or more", args.num_slots);
    return status;
  }
  if (!check.array("token_slots", args.token_slots, args.num_tokens, 4, false) ||
      !check.device("args", args.device)) {
    return status;
  }
  const std::uint64_t need = grouping_bytes(args.num_tokens, args.num_slots);
  if (args.memory_bytes < need) {
    check.fail(StatusCode::workspace_too_small,
               "memory has %" PRIu64 " bytes; it should have at least %" PRIu64
               " (grouping_bytes(%" PRId64 ", %d))",
               args.memory_bytes, need, args.num_tokens, args.num_slots);
    return status;
  }
  if (need == 0) return status;
  if (args.memory == nullptr) {
    check.fail(kInvalid, "memory is null; it should point to %" PRIu64 " bytes", need);
    return status;
  }
  if ((reinterpret_cast<std::uintptr_t>(args.memory) & 15u) != 0) {
    check.fail(kInvalid, "memory is at %p; it should be aligned to 16 bytes", args.memory);
    return status;
  }
  const auto memory = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(args.memory));
  const auto slots = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(args.token_slots));
  const std::uint64_t slots_bytes = static_cast<std::uint64_t>(args.num_tokens) * 4;
  if (need > std::numeric_limits<std::uint64_t>::max() - memory) {
    check.fail(kInvalid, "memory has %" PRIu64 " bytes; it should end inside the address space",
               need);
  } else if (memory < slots + slots_bytes && slots < memory + need) {
    check.fail(kInvalid,
               "memory at [0x%" PRIx64 ", 0x%" PRIx64 ") overlaps token_slots at [0x%" PRIx64
               ", 0x%" PRIx64 "); it should share no byte with it",
               memory, memory + need, slots, slots + slots_bytes);
  }
  return status;
}

RANKFOLD_NAMESPACE_END
