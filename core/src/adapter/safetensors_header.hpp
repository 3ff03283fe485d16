// The JSON header of a safetensors file, checked against itself and the size of the data.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rankfold/safetensors.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

/// A dtype of the format. `bits` may be less than 8.
struct FileDType {
  const char* name;
  std::uint32_t bits;
  std::int32_t has_dtype;  ///< 1: `dtype` expresses it
  DType dtype;
};

/// The dtype of a name as the format writes it, or null.
const FileDType* find_file_dtype(std::string_view name) noexcept;

/// Product of the sizes times the bits, in bytes. Zeros do not hide an overflow of the rest.
/// Errors: malformed_file.
Result<std::uint64_t> bytes_of(const FileDType& dtype, const std::int64_t* sizes, int num_dims);

struct HeaderTensor {
  std::string name;
  const FileDType* dtype = nullptr;
  std::int32_t num_dims = 0;
  std::int64_t sizes[kSafetensorsMaxDims] = {};
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

struct Header {
  std::vector<HeaderTensor> tensors;  ///< in the order of their data
  std::vector<std::pair<std::string, std::string>> metadata;
};

/// Parses and checks everything; `data_bytes` is what follows the header in the file.
/// Errors: malformed_file.
Result<Header> parse_header(std::string_view json, std::uint64_t data_bytes);

/// Reads and checks the length and the header of a file of `file_bytes` bytes, so that a malformed
/// one costs no memory for its data. Errors: malformed_file, invalid_argument (cannot be read).
Status check_file_start(std::FILE* file, std::uintmax_t file_bytes);

}  // namespace detail
RANKFOLD_NAMESPACE_END
