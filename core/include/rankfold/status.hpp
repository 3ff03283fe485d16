// Status, Result and Error: how every function of rankfold reports that it could not do its work.
#pragma once

#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "rankfold/export.hpp"

RANKFOLD_NAMESPACE_BEGIN

/// Why a call was refused. The numbers are part of the ABI.
enum class StatusCode : std::int32_t {
  ok = 0,
  invalid_argument = 1,     ///< an argument breaks its documented rule
  unsupported = 2,          ///< the arguments are legal, this backend or version cannot do it
  unknown_backend = 3,      ///< no backend of that name exists
  not_compiled = 4,         ///< the backend exists, but not in this build
  unavailable = 5,          ///< the backend is in this build, but not usable on this machine
  out_of_memory = 6,        ///< an allocation outside the operations failed
  workspace_too_small = 7,  ///< the caller's workspace is smaller than workspace_bytes() asked for
  no_room = 8,              ///< the adapter pool is full and everything in it is pinned
  malformed_file = 9,       ///< a file breaks its format
  cancelled = 10,           ///< the caller cancelled it
  device_error = 11,        ///< the device's runtime reported an error
  internal = 12,            ///< a fault of rankfold itself
};

/// The name of the code as written above, for example "invalid_argument". A static string.
RANKFOLD_EXPORT const char* to_string(StatusCode code) noexcept;

/// The code of a name as to_string() writes it; nothing for any other text.
RANKFOLD_EXPORT std::optional<StatusCode> parse_status_code(std::string_view name) noexcept;

/// Outcome of a call: a code and, unless ok, one sentence that names the argument, says what it is
/// and what it should be. A plain struct of fixed size: making or copying one never allocates.
/// A longer text is cut at a character boundary and ends in "...".
struct [[nodiscard]] RANKFOLD_EXPORT Status {
  static constexpr std::size_t kTextBytes = 1020;  ///< with the terminating zero

  Status() noexcept : code_(StatusCode::ok) { text_[0] = '\0'; }
  Status(StatusCode code, std::string_view text) noexcept;

  /// printf-style, cut like the constructor.
  [[gnu::format(printf, 2, 3)]] static Status format(StatusCode code, const char* format,
                                                     ...) noexcept;
  static Status vformat(StatusCode code, const char* format, std::va_list args) noexcept;

  bool ok() const noexcept { return code_ == StatusCode::ok; }
  explicit operator bool() const noexcept { return ok(); }
  StatusCode code() const noexcept { return code_; }
  /// Zero-terminated UTF-8; empty when ok.
  const char* message() const noexcept { return text_; }

 private:
  StatusCode code_;
  char text_[kTextBytes];
};

/// Thrown by value() and by the throwing skins; what() is the status's text.
class RANKFOLD_EXPORT Error : public std::runtime_error {
 public:
  explicit Error(const Status& status);
  ~Error() override;
  const Status& status() const noexcept { return status_; }

 private:
  Status status_;
};

/// Throws Error(status) unless it is ok.
RANKFOLD_EXPORT void throw_if_error(const Status& status);

/// A value, or the status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}              // NOLINT: conversion is the point
  Result(const Status& status) noexcept : status_(status) {  // NOLINT: likewise
    if (status_.ok()) status_ = Status(StatusCode::internal, "a Result was made from an ok Status");
  }

  bool ok() const noexcept { return value_.has_value(); }
  explicit operator bool() const noexcept { return ok(); }
  const Status& status() const noexcept { return status_; }

  /// The value; throws Error when there is none.
  T& value() & {
    throw_if_error(status_);
    return *value_;
  }
  const T& value() const& {
    throw_if_error(status_);
    return *value_;
  }
  T&& value() && {
    throw_if_error(status_);
    return std::move(*value_);
  }

  /// The value; only when ok().
  T& operator*() noexcept { return *value_; }
  const T& operator*() const noexcept { return *value_; }
  T* operator->() noexcept { return &*value_; }
  const T* operator->() const noexcept { return &*value_; }

 private:
  Status status_;
  std::optional<T> value_;
};

RANKFOLD_NAMESPACE_END
