// What the writer writes is read back; what the reader would refuse is not written.
#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <string>

#include "files.hpp"

using namespace adapter_tests;  // NOLINT
using rankfold::DType;
using rankfold::SafetensorsTensor;
using rankfold::StatusCode;

namespace {

struct TemporaryFile {
  std::string path = (std::filesystem::temp_directory_path() /
                      ("rankfold_writer_" + std::to_string(reinterpret_cast<std::uintptr_t>(this)) +
                       ".safetensors"))
                         .string();
  ~TemporaryFile() { std::filesystem::remove(path); }
};

}  // namespace

TEST_CASE("a written file is read back bit by bit") {
  const TemporaryFile file;
  const float weights[6] = {1, -2, 0.5f, 1e30f, -0.0f, 7};
  const std::int64_t ids[2] = {-1, INT64_MAX};
  const SafetensorsTensor tensors[] = {
      {"weights \"\\ \xc3\xa4", DType::f32, 2, {2, 3}, weights},
      {"empty", DType::f16, 2, {0, 4}, nullptr},
      {"ids", DType::i64, 1, {2}, ids},
      {"scalar", DType::bf16, 0, {}, weights},
  };
  const rankfold::SafetensorsMetadata metadata[] = {{"format", "pt"}, {"a\n", "\t"}};
  const auto written = rankfold::write_safetensors(file.path, tensors, metadata);
  REQUIRE_MESSAGE(written.ok(), written.message());

  const auto read = rankfold::Safetensors::read(file.path);
  REQUIRE_MESSAGE(read.ok(), read.status().message());
  REQUIRE(read->entries().size() == 4);
  for (int i = 0; i < 4; ++i) {
    const auto* entry = read->find(tensors[i].name);
    REQUIRE(entry != nullptr);
    CHECK(entry->dtype == tensors[i].dtype);
    CHECK(entry->num_dims == tensors[i].num_dims);
    if (tensors[i].data == nullptr) continue;
    CHECK(std::memcmp(entry->data, tensors[i].data, entry->bytes) == 0);
  }
  REQUIRE(read->metadata().size() == 2);
  CHECK(std::string(read->find_metadata("a\n")) == "\t");
  // The header ends on a multiple of 8, so the first tensor is aligned in the file.
  CHECK((std::filesystem::file_size(file.path) - 24 - 16 - 2) % 8 == 0);
}

TEST_CASE("what cannot be written is refused, and no file appears") {
  const TemporaryFile file;
  const float value = 1;
  const auto refused = [&](std::vector<SafetensorsTensor> tensors, const char* text) {
    check_error(rankfold::write_safetensors(file.path, tensors), StatusCode::invalid_argument,
                {text});
    CHECK(!std::filesystem::exists(file.path));
  };
  refused({{"a", DType::f32, 1, {1}, &value}, {"a", DType::f32, 1, {1}, &value}}, "twice");
  refused({{"a", DType::f32, 1, {-1}, &value}}, "negative");
  refused({{"a", DType::f32, 9, {1}, &value}}, "dimensions");
  refused({{"a", DType::f32, 1, {1}, nullptr}}, "null data");
  refused({{nullptr, DType::f32, 1, {1}, &value}}, "null");
  refused({{"\xff", DType::f32, 1, {1}, &value}}, "UTF-8");
  refused({{"__metadata__", DType::f32, 1, {1}, &value}}, "__metadata__");
  refused({{"a", DType::f64, 2, {INT64_MAX, INT64_MAX}, &value}}, "overflow");
  const rankfold::SafetensorsMetadata twice[] = {{"k", "1"}, {"k", "2"}};
  check_error(rankfold::write_safetensors(file.path, {}, twice), StatusCode::invalid_argument,
              {"'k'"});
  check_error(rankfold::write_safetensors("/nonexistent/f", {}), StatusCode::invalid_argument,
              {"/nonexistent/f"});
}
