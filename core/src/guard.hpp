// A backend's exceptions end here: the public functions are noexcept and answer by Status.
#pragma once

#include <exception>
#include <new>

#include "rankfold/status.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

/// The status of the exception being handled.
inline Status status_of_current_exception() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    return error.status();
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::out_of_memory, "host memory is exhausted");
  } catch (const std::exception& error) {
    return Status(StatusCode::internal, error.what());
  } catch (...) {
    return Status(StatusCode::internal, "an exception of an unknown type was thrown");
  }
}

/// Calls and turns an exception into a status; T must be constructible from a Status.
template <class Call>
auto guarded(Call&& call) noexcept -> decltype(call()) {
  try {
    return call();
  } catch (...) {
    return status_of_current_exception();
  }
}

}  // namespace detail
RANKFOLD_NAMESPACE_END
