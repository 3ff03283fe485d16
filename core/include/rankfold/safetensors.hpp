// Reading and writing safetensors files, strictly: what breaks the format is refused, not guessed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "rankfold/dtype.hpp"
#include "rankfold/export.hpp"
#include "rankfold/status.hpp"

RANKFOLD_NAMESPACE_BEGIN

/// Most dimensions of a tensor in a file.
inline constexpr int kSafetensorsMaxDims = 8;

/// One tensor of a file. `data` may be unaligned (legal in the format): read it by memcpy.
/// Strings are zero-terminated UTF-8 and belong to the Safetensors object.
struct SafetensorsEntry {
  const char* name = "";
  const char* dtype_name = "";  ///< as the file writes it: "F32", "BF16", "U8", ...
  std::int32_t has_dtype = 0;   ///< 1: `dtype` expresses it; 0: U8, BOOL, F8_E4M3, ...
  DType dtype = DType::f32;
  std::int32_t num_dims = 0;
  std::int32_t reserved = 0;
  std::int64_t sizes[kSafetensorsMaxDims] = {};
  const void* data = nullptr;
  std::uint64_t bytes = 0;
};
static_assert(std::is_trivially_copyable_v<SafetensorsEntry> &&
              std::is_standard_layout_v<SafetensorsEntry>);

/// One pair of __metadata__.
struct SafetensorsMetadata {
  const char* key = "";
  const char* value = "";
};

/// A file in memory. Move-only; thread-safe to read.
class RANKFOLD_EXPORT Safetensors {
 public:
  /// Errors: invalid_argument (cannot be read), malformed_file: header length 0, over 100 MB or
  /// past the file; invalid UTF-8 or JSON; root not an object; duplicate names; a NUL in a name;
  /// unknown fields or dtypes; negative, fractional or overflowing numbers; size unequal to shape x
  /// dtype; overlap, hole, trailing bytes; more than 8 dimensions. Nothing is allocated from a size
  /// that was not checked.
  static Result<Safetensors> read(std::string_view path);
  /// The same from memory; takes the bytes. `name` stands in the texts of errors.
  static Result<Safetensors> parse(std::vector<std::byte> bytes, std::string_view name);

  Safetensors(Safetensors&&) noexcept;
  Safetensors& operator=(Safetensors&&) noexcept;
  ~Safetensors();

  /// In the order of their data.
  std::span<const SafetensorsEntry> entries() const noexcept;
  /// The tensor of a name, or null.
  const SafetensorsEntry* find(std::string_view name) const noexcept;
  /// __metadata__, in file order.
  std::span<const SafetensorsMetadata> metadata() const noexcept;
  /// The value of a key, or null.
  const char* find_metadata(std::string_view key) const noexcept;

 private:
  struct State;
  explicit Safetensors(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

/// What write_safetensors() takes: the bytes of a dense row-major tensor.
struct SafetensorsTensor {
  const char* name = "";
  DType dtype = DType::f32;
  std::int32_t num_dims = 0;
  std::int64_t sizes[kSafetensorsMaxDims] = {};
  const void* data = nullptr;
};

/// Writes a file that read() accepts, tensors in the order given, the header padded to 8 bytes.
/// It is written beside its name first and then takes its place at once: a failure leaves what was
/// there. Errors: invalid_argument (a name twice, a negative size, the file cannot be written).
RANKFOLD_EXPORT Status write_safetensors(std::string_view path,
                                         std::span<const SafetensorsTensor> tensors,
                                         std::span<const SafetensorsMetadata> metadata = {});

RANKFOLD_NAMESPACE_END
