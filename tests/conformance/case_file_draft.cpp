#include "case_file_draft.hpp"

#include <doctest/doctest.h>

#include <unistd.h>
#include <algorithm>
#include <filesystem>
#include <vector>

#include "rankfold/safetensors.hpp"

namespace rankfold::conformance {

namespace {

std::string next_number() {
  static int number = 0;
  return std::to_string(number++);
}

}  // namespace

TemporaryFile::TemporaryFile()
    : path((std::filesystem::temp_directory_path() /
            ("rankfold_case_" + std::to_string(::getpid()) + "_" + next_number() + ".safetensors"))
               .string()) {}
TemporaryFile::~TemporaryFile() {
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
}

CaseResult run_draft(const std::map<std::string, std::string>& attributes,
                     const std::map<std::string, testing::HostTensor>& tensors, Mutation mutation) {
  const TemporaryFile file;
  std::vector<SafetensorsTensor> views;
  for (const auto& [name, tensor] : tensors) {
    SafetensorsTensor view;
    view.name = name.c_str();
    view.dtype = tensor.dtype;
    view.num_dims = static_cast<std::int32_t>(tensor.sizes.size());
    std::copy(tensor.sizes.begin(), tensor.sizes.end(), view.sizes);
    view.data = tensor.bytes.data();
    views.push_back(view);
  }
  std::vector<SafetensorsMetadata> metadata;
  for (const auto& [key, value] : attributes) metadata.push_back({key.c_str(), value.c_str()});
  const Status status = write_safetensors(file.path, views, metadata);
  REQUIRE_MESSAGE(status.ok(), status.message());
  NaiveBackend backend(mutation);
  return run_case_file(backend, file.path, {});
}

void check_refused(const CaseResult& result, const std::string& named) {
  CHECK(result.verdict == Verdict::failed);
  CHECK_MESSAGE(result.message.find(named) != std::string::npos, result.message, " names ", named);
}

}  // namespace rankfold::conformance
