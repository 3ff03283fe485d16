// For tests of case files: a file made in memory, and what became of it.
#pragma once

#include <map>
#include <string>

#include "conformance.hpp"
#include "host_tensor.hpp"
#include "naive_backend.hpp"

namespace rankfold::conformance {

/// A file in the temporary folder, removed with the object.
struct TemporaryFile {
  TemporaryFile();
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  std::string path;
};

/// Writes the file and replays it on a plain backend.
CaseResult run_draft(const std::map<std::string, std::string>& attributes,
                     const std::map<std::string, testing::HostTensor>& tensors,
                     Mutation mutation = Mutation::none);

/// Failed, with `named` in the message.
void check_refused(const CaseResult& result, const std::string& named);

}  // namespace rankfold::conformance
