// Guard bands: how a tensor lies in memory between NaN, and what of it a call has touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "host_tensor.hpp"

namespace rankfold::testing {

inline constexpr std::size_t kGuardBytes = 256;

/// A tensor's memory with guards before and after it and in the gaps of its rows. Floating gaps
/// hold NaN, integer gaps a large number.
struct GuardedImage {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::byte> bytes;  ///< a multiple of kGuardBytes
  std::size_t offset = 0;        ///< of the first element
  std::size_t num_rows = 0;
  std::size_t row_bytes = 0;
  std::size_t stride_bytes = 0;
  bool writable = false;  ///< the rows may change; gaps and guards never

  /// Bytes from the first element to the end of the last row.
  std::size_t payload_bytes() const noexcept {
    return num_rows == 0 ? 0 : (num_rows - 1) * stride_bytes + row_bytes;
  }
};

/// A matrix (or vector: one row) with `row_stride` elements between rows (-1: dense), its start
/// shifted by `misalignment` elements from an aligned address.
GuardedImage make_image(std::string name, const HostTensor& tensor, std::int64_t row_stride = -1,
                        std::int64_t misalignment = 0);
/// Raw memory (workspace, grouping memory) of exactly `size` bytes, filled with 0xff: NaN in every
/// floating type, -1 in every integer type.
GuardedImage make_raw_image(std::string name, std::size_t size);

/// Empty, or where memory that may not change has changed. `after` is as long as image.bytes.
std::string find_damage(const GuardedImage& image, std::span<const std::byte> after);

/// The rows of `after` as a dense tensor of the sizes of `like`.
HostTensor extract(const GuardedImage& image, std::span<const std::byte> after,
                   const HostTensor& like);

}  // namespace rankfold::testing
