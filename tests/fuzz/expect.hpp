// What a fuzz target demands beyond not crashing.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>

#include "rankfold/adapter.hpp"
#include "rankfold/status.hpp"

namespace fuzz {

inline void expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

/// A refusal has a code and a text that is valid up to its end.
inline void expect_refusal(const rankfold::Status& status) {
  expect(status.code() == rankfold::StatusCode::malformed_file ||
             status.code() == rankfold::StatusCode::unsupported ||
             status.code() == rankfold::StatusCode::invalid_argument,
         "a refusal of input has one of three codes");
  expect(std::strlen(status.message()) > 0, "a refusal has a text");
}

/// Reads every byte, so that a view past the end is seen by the sanitizer.
inline unsigned touch(const void* data, std::size_t bytes) {
  unsigned sum = 0;
  for (std::size_t i = 0; i < bytes; ++i) sum += static_cast<const unsigned char*>(data)[i];
  return sum;
}

inline void expect_sound(const rankfold::AdapterFile& file) {
  bool refused = false;
  for (const rankfold::Finding& finding : file.findings()) {
    expect(std::strlen(finding.text) > 0, "a finding has a text");
    refused = refused || finding.severity == rankfold::Finding::Severity::refused;
  }
  expect(refused == !file.status().ok(), "a refusal among the findings is the status");
  if (!file.status().ok()) {
    expect_refusal(file.status());
    return;
  }
  for (const rankfold::AdapterModule& module : file.modules()) {
    expect(module.rank > 0 && module.in > 0 && module.out > 0, "an accepted module has a shape");
    expect(std::isfinite(module.scaling), "an accepted scaling is finite");
  }
}

inline void expect_sound(const rankfold::Adapter& adapter) {
  expect(!adapter.bindings().empty() || adapter.report().size() > 0, "something is reported");
  for (const rankfold::AdapterBinding& binding : adapter.bindings()) {
    for (const rankfold::ConstTensorView* view : {&binding.a, &binding.b}) {
      const std::size_t size = rankfold::size_of(view->dtype);
      for (std::int64_t i = 0; i < view->sizes[0]; ++i) {
        for (std::int64_t j = 0; j < view->sizes[1]; ++j) {
          const std::int64_t at = i * view->strides[0] + j * view->strides[1];
          touch(static_cast<const char*>(view->data) + at * static_cast<std::int64_t>(size), size);
        }
      }
    }
  }
}

}  // namespace fuzz
