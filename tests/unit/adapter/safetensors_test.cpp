// The reader: what it accepts, and every rejection, each file built here.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "files.hpp"

using namespace adapter_tests;  // NOLINT
using rankfold::Safetensors;
using rankfold::StatusCode;

namespace {

struct Rejection {
  const char* what;
  std::string header;
  std::size_t data_bytes;
  const char* text;  // part of the error
};

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

const std::string kHuge = "9223372036854775807";

const std::vector<Rejection>& rejections() {
  static const std::vector<Rejection> kList = {
      {"not JSON", "{\"a\"", 0, "invalid JSON"},
      {"trailing text", "{} x", 0, "invalid JSON"},
      {"two documents", "{}{}", 0, "invalid JSON"},
      {"a comment", "{/* */}", 0, "invalid JSON"},
      {"NaN", "{\"a\":NaN}", 0, "invalid JSON"},
      {"space before the object", " {}", 0, "begin with {"},
      {"byte order mark", "\xef\xbb\xbf{}", 0, "begin with {"},
      {"root an array", "[]", 0, "begin with {"},
      {"root a number", "7", 0, "begin with {"},
      {"NUL in the header", std::string("{}\0\0", 4), 0, "NUL"},
      {"NUL in a name", "{" + tensor("a\\u0000b", "F32", "[1]", "[0,4]") + "}", 4, "NUL in a name"},
      {"NUL in metadata", "{\"__metadata__\":{\"a\":\"b\\u0000\"}}", 0, "NUL"},
      {"invalid UTF-8", "{" + tensor("\xff", "F32", "[1]", "[0,4]") + "}", 4, "invalid UTF-8"},
      {"overlong UTF-8", "{" + tensor("\xc0\xaf", "F32", "[1]", "[0,4]") + "}", 4, "UTF-8"},
      {"lone surrogate", "{" + tensor("\\ud800", "F32", "[1]", "[0,4]") + "}", 4, "invalid JSON"},
      {"duplicate name",
       "{" + tensor("a", "F32", "[1]", "[0,4]") + "," + tensor("a", "F32", "[1]", "[4,8]") + "}", 8,
       "'a' appears twice"},
      {"duplicate after unescaping",
       "{" + tensor("a", "F32", "[1]", "[0,4]") + "," + tensor("\\u0061", "F32", "[1]", "[4,8]") +
           "}",
       8, "'a' appears twice"},
      {"duplicate field", "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", 0, "twice"},
      {"duplicate metadata", "{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, "'k'"},
      {"metadata twice", "{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__"},
      {"metadata not strings", "{\"__metadata__\":{\"k\":1}}", 0, "must be a string"},
      {"metadata nested", "{\"__metadata__\":{\"k\":{}}}", 0, "must be a string"},
      {"metadata a list", "{\"__metadata__\":[]}", 0, "__metadata__"},
      {"unknown field", "{\"a\":{\"stride\":[1]}}", 0, "unknown field 'stride'"},
      {"missing dtype", "{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "no dtype"},
      {"missing shape", "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "no shape"},
      {"missing offsets", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "no data_offsets"},
      {"unknown dtype", "{" + tensor("a", "F12", "[1]", "[0,4]") + "}", 4, "unknown dtype 'F12'"},
      {"dtype in lower case", "{" + tensor("a", "f32", "[1]", "[0,4]") + "}", 4, "unknown dtype"},
      {"dtype a number", "{\"a\":{\"dtype\":1}}", 0, "must be a string"},
      {"negative size", "{" + tensor("a", "F32", "[-1]", "[0,4]") + "}", 4, "negative"},
      {"negative zero", "{" + tensor("a", "F32", "[-0]", "[0,0]") + "}", 0, "negative"},
      {"fractional size", "{" + tensor("a", "F32", "[1.0]", "[0,4]") + "}", 4, "fractional"},
      {"exponent", "{" + tensor("a", "F32", "[1e0]", "[0,4]") + "}", 4, "fractional"},
      {"size past int64", "{" + tensor("a", "U8", "[9223372036854775808]", "[0,4]") + "}", 4,
       "overflow"},
      {"size past uint64", "{" + tensor("a", "U8", "[18446744073709551616]", "[0,4]") + "}", 4,
       "overflow"},
      {"size past double",
       "{" + tensor("a", "U8", "[1" + std::string(400, '0') + "]", "[0,4]") + "}", 4, "overflow"},
      {"size a string", "{" + tensor("a", "F32", "[\"1\"]", "[0,4]") + "}", 4, "unsigned"},
      {"shape nested", "{" + tensor("a", "F32", "[[1]]", "[0,4]") + "}", 4, "nested deeper"},
      {"shape an object", "{" + tensor("a", "F32", "{}", "[0,4]") + "}", 4, "must be an array"},
      {"shape product overflows",
       "{" + tensor("a", "U8", "[" + kHuge + "," + kHuge + "]", "[0,4]") + "}", 4, "overflow"},
      {"shape product overflows beside a zero",
       "{" + tensor("a", "U8", "[0," + kHuge + "," + kHuge + "]", "[0,0]") + "}", 0, "overflow"},
      {"shape product overflows before a zero",
       "{" + tensor("a", "U8", "[" + kHuge + "," + kHuge + ",0]", "[0,0]") + "}", 0, "overflow"},
      {"bytes overflow", "{" + tensor("a", "F64", "[" + kHuge + "]", "[0,4]") + "}", 4, "overflow"},
      {"bytes wrap to what is there",
       "{" + tensor("a", "F32", "[4611686018427387905]", "[0,4]") + "}", 4, "overflow"},
      {"offsets descending", "{" + tensor("a", "F32", "[1]", "[4,0]") + "}", 4, "do not fit"},
      {"offsets negative", "{" + tensor("a", "F32", "[1]", "[-4,0]") + "}", 4, "negative"},
      {"offsets past the data", "{" + tensor("a", "F32", "[2]", "[0,8]") + "}", 4, "do not fit"},
      {"one offset", "{" + tensor("a", "F32", "[1]", "[0]") + "}", 4, "fewer than two"},
      {"three offsets", "{" + tensor("a", "F32", "[1]", "[0,4,4]") + "}", 4, "more than two"},
      {"size unequal to shape", "{" + tensor("a", "F32", "[2]", "[0,4]") + "}", 4, "needs 8"},
      {"odd bytes for two-byte elements", "{" + tensor("a", "F16", "[1]", "[0,3]") + "}", 3,
       "needs 2"},
      {"half a byte", "{" + tensor("a", "F4", "[3]", "[0,2]") + "}", 2, "whole number"},
      {"overlap",
       "{" + tensor("a", "F32", "[2]", "[0,8]") + "," + tensor("b", "F32", "[2]", "[4,12]") + "}",
       12, "overlap"},
      {"the same bytes twice",
       "{" + tensor("a", "F32", "[1]", "[0,4]") + "," + tensor("b", "F32", "[1]", "[0,4]") + "}", 4,
       "overlap"},
      {"empty tensor inside another",
       "{" + tensor("a", "F32", "[2]", "[0,8]") + "," + tensor("b", "F32", "[0]", "[4,4]") + "}", 8,
       "overlap"},
      {"hole",
       "{" + tensor("a", "F32", "[1]", "[0,4]") + "," + tensor("b", "F32", "[1]", "[8,12]") + "}",
       12, "hole"},
      {"hole in front", "{" + tensor("a", "F32", "[1]", "[4,8]") + "}", 8, "hole"},
      {"trailing bytes", "{" + tensor("a", "F32", "[1]", "[0,4]") + "}", 5, "1 trailing"},
      {"bytes without tensors", "{}", 1, "1 trailing"},
      {"nine dimensions", "{" + tensor("a", "U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") + "}", 1,
       "more than 8"},
      {"a tensor that is null", "{\"a\":null}", 0, "must be an object"},
      {"a tensor that is a list", "{\"a\":[]}", 0, "must be an object"},
      {"depth", "{\"a\":" + std::string(100000, '[') + "}", 0, ""},
  };
  return kList;
}

}  // namespace

TEST_CASE("I8: a malformed header is refused with a text that says why") {
  for (const Rejection& rejection : rejections()) {
    CAPTURE(std::string(rejection.what));
    const auto file =
        Safetensors::parse(file_of(rejection.header, rejection.data_bytes), "some/file");
    REQUIRE(!file.ok());
    check_error(file.status(), StatusCode::malformed_file, {"'some/file'", rejection.text});
  }
}

TEST_CASE("I8: header length 0, over 100 MB, past the file; a file too short for one") {
  const auto refused = [](const Bytes& bytes, const char* text) {
    const auto file = Safetensors::parse(bytes, "f");
    REQUIRE(!file.ok());
    check_error(file.status(), StatusCode::malformed_file, {text});
  };
  refused({}, "too few");
  refused(Bytes(7), "too few");
  refused(file_with_length(0, "{}"), "length is 0");
  refused(file_with_length(3, "{}"), "length is 3");
  refused(file_with_length(UINT64_MAX, "{}"), "18446744073709551615");
  refused(file_with_length(UINT64_MAX - 7, "{}"), "18446744073709551608");
  refused(file_with_length(std::uint64_t{1} << 63, "{}"), "9223372036854775808");
  // One byte over the limit, and all of it is there.
  refused(file_of("{}" + std::string(100'000'000 - 1, ' '), 0), "the most is 100000000");
}

TEST_CASE("I8: every prefix of a good file is refused") {
  const Bytes whole = file_of({{"a", {2, 3}}, {"b", {1}}});
  REQUIRE(Safetensors::parse(whole, "f").ok());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    CAPTURE(size);
    CHECK(!Safetensors::parse(Bytes(whole.begin(), whole.begin() + size), "f").ok());
  }
}

TEST_CASE("a header of exactly 100 MB is read") {
  CHECK(Safetensors::parse(file_of("{}" + std::string(100'000'000 - 2, ' '), 0), "f").ok());
}

TEST_CASE("legal files: unaligned data, scalars, empty tensors, padding, any order of the header") {
  const std::string header =
      "{" + tensor("z", "F32", "[2]", "[1,9]") + "," + tensor("bytes", "U8", "[1]", "[0,1]") + "," +
      tensor("empty", "F32", "[0,7]", "[9,9]") + "," + tensor("scalar", "BF16", "[]", "[9,11]") +
      ",\"__metadata__\":{\"format\":\"pt\",\"\\u00e4\":\"\\n\"}}   ";
  Bytes data(11);
  const float values[] = {1.5f, -2.0f};
  std::memcpy(data.data() + 1, values, 8);
  auto file = Safetensors::parse(file_of(header, data), "f");
  REQUIRE_MESSAGE(file.ok(), file.status().message());
  REQUIRE(file->entries().size() == 4);
  CHECK(std::string(file->entries()[0].name) == "bytes");
  CHECK(file->entries()[0].has_dtype == 0);
  CHECK(std::string(file->entries()[0].dtype_name) == "U8");
  const auto* z = file->find("z");
  REQUIRE(z != nullptr);
  CHECK(z->has_dtype == 1);
  CHECK(z->dtype == rankfold::DType::f32);
  CHECK(std::memcmp(z->data, values, 8) == 0);
  CHECK(file->find("empty")->bytes == 0);
  CHECK(file->find("scalar")->num_dims == 0);
  CHECK(file->find("scalar")->bytes == 2);
  CHECK(file->find("y") == nullptr);
  CHECK(std::string(file->find_metadata("format")) == "pt");
  CHECK(std::string(file->find_metadata("\xc3\xa4")) == "\n");
  CHECK(file->find_metadata("none") == nullptr);

  const auto moved = std::move(*file);
  CHECK(file->entries().empty());
  CHECK(file->find("z") == nullptr);
  CHECK(std::memcmp(moved.find("z")->data, values, 8) == 0);
}

TEST_CASE("legal files: every dtype of the format, with its width") {
  struct Width {
    const char* dtype;
    int bits;
    bool expressible;
  };
  for (const Width& width :
       {Width{"BOOL", 8, false},        Width{"U8", 8, false},          Width{"I8", 8, false},
        Width{"F8_E5M2", 8, false},     Width{"F8_E4M3", 8, false},     Width{"F8_E8M0", 8, false},
        Width{"F8_E4M3FNUZ", 8, false}, Width{"F8_E5M2FNUZ", 8, false}, Width{"I16", 16, false},
        Width{"U16", 16, false},        Width{"F16", 16, true},         Width{"BF16", 16, true},
        Width{"I32", 32, true},         Width{"U32", 32, false},        Width{"F32", 32, true},
        Width{"F64", 64, true},         Width{"I64", 64, true},         Width{"U64", 64, false},
        Width{"C64", 64, false},        Width{"F4", 4, false},          Width{"F6_E2M3", 6, false},
        Width{"F6_E3M2", 6, false}}) {
    CAPTURE(std::string(width.dtype));
    const int bytes = width.bits * 4 / 8;
    const std::string end = std::to_string(bytes);
    const auto file = Safetensors::parse(
        file_of("{" + tensor("a", width.dtype, "[4]", "[0," + end + "]") + "}", bytes), "f");
    REQUIRE_MESSAGE(file.ok(), file.status().message());
    CHECK(file->entries()[0].has_dtype == (width.expressible ? 1 : 0));
  }
}

TEST_CASE("a path that cannot be read is an invalid argument") {
  for (const char* path : {"/nonexistent/file.safetensors", "/", "/dev/zero"}) {
    CAPTURE(std::string(path));
    const auto file = Safetensors::read(path);
    REQUIRE(!file.ok());
    check_error(file.status(), StatusCode::invalid_argument, {path});
  }
}

TEST_CASE("a malformed file is refused before memory for its data is taken") {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("rankfold_huge_" + std::to_string(getpid())))
          .string();
  for (const bool has_header : {false, true}) {
    const auto start = has_header ? file_with_length(2, "[]") : file_with_length(0, "");
    {
      std::ofstream file(path, std::ios::binary);
      file.write(reinterpret_cast<const char*>(start.data()),
                 static_cast<std::streamsize>(start.size()));
    }
    std::filesystem::resize_file(path, std::uintmax_t{1} << 42);  // no such memory anywhere
    const auto file = Safetensors::read(path);
    REQUIRE(!file.ok());
    check_error(file.status(), StatusCode::malformed_file, {path});
  }
  std::filesystem::remove(path);
}
