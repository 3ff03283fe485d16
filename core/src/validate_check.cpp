#include "validate_check.hpp"

#include <cstdarg>
#include <cstdio>

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

namespace {

struct DeviceText {
  char text[32];
  explicit DeviceText(Device device) noexcept {
    const char* type = nullptr;
    switch (device.type) {
      case DeviceType::cpu:
        type = "cpu";
        break;
      case DeviceType::cuda:
        type = "cuda";
        break;
      case DeviceType::vulkan:
        type = "vulkan";
        break;
      case DeviceType::rocm:
        type = "rocm";
        break;
      case DeviceType::oneapi:
        type = "oneapi";
        break;
    }
    if (type != nullptr) {
      std::snprintf(text, sizeof(text), "%s:%d", type, device.index);
    } else {
      std::snprintf(text, sizeof(text), "type %d:%d", static_cast<int>(device.type), device.index);
    }
  }
};

}  // namespace

bool Check::fail(StatusCode code, const char* format, ...) noexcept {
  char text[Status::kTextBytes + 8];
  const int prefix = std::snprintf(text, sizeof(text), "%s: ", context_);
  std::va_list args;
  va_start(args, format);
  std::vsnprintf(text + prefix, sizeof(text) - static_cast<std::size_t>(prefix), format, args);
  va_end(args);
  *status_ = Status(code, text);
  return false;
}

bool Check::options(const CallOptions& options) noexcept {
  const auto outside = [](auto value, int count) {
    return static_cast<std::uint32_t>(value) >= static_cast<std::uint32_t>(count);
  };
  if (outside(options.batch_invariant, 2)) {
    return fail(StatusCode::invalid_argument,
                "options.batch_invariant is %d; it should be off (0) or on (1)",
                static_cast<int>(options.batch_invariant));
  }
  if (outside(options.strategy, kNumStrategies)) {
    return fail(StatusCode::invalid_argument,
                "options.strategy is %d; it should be one of enum Strategy, 0 to %d",
                static_cast<int>(options.strategy), kNumStrategies - 1);
  }
  if (outside(options.y_mode, 2)) {
    return fail(StatusCode::invalid_argument,
                "options.y_mode is %d; it should be accumulate (0) or overwrite (1)",
                static_cast<int>(options.y_mode));
  }
  if (options.configuration < 0) {
    return fail(StatusCode::invalid_argument,
                "options.configuration is %d; it should be 0 or 1 + an index",
                options.configuration);
  }
  if (outside(options.overlap, 2)) {
    return fail(StatusCode::invalid_argument,
                "options.overlap is %d; it should be on (0) or off (1)",
                static_cast<int>(options.overlap));
  }
  return true;
}

bool Check::device(const char* name, Device device) noexcept {
  if (device == device_) return true;
  return fail(StatusCode::invalid_argument, "%s is on %s; it should be on %s, the backend's device",
              name, DeviceText(device).text, DeviceText(device_).text);
}

}  // namespace detail
RANKFOLD_NAMESPACE_END
