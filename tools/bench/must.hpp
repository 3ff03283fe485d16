// From a Status to the exception that ends a point or the command.
#pragma once

#include <utility>

#include "command.hpp"

namespace rankfold::tools {

inline void must(const Status& status) {
  if (!status.ok()) throw CommandError(kExitFailure, describe(status));
}

template <class T>
T must(Result<T> result) {
  must(result.status());
  return std::move(*result);
}

}  // namespace rankfold::tools
