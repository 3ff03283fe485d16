// What tensors of a point hold: long periodic noise, known to the host element by element, laid
// into device memory by copies of one period.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "rankfold/dtype.hpp"
#include "rankfold/memory.hpp"

namespace rankfold::tools {

/// Which noise; each kind has numbers of its own.
enum class Fill { a = 0, b = 1, x = 2, y = 3, dx = 4 };

/// Element e of a tensor that starts at byte `at` of its layer is number (at / 2 + e) mod period of
/// its kind: uniform, rounded to the tensor's dtype.
class Patterns {
 public:
  explicit Patterns(LoraBackend& backend) : backend_(backend) {}

  /// Enqueues filling. Throws CommandError.
  void fill(void* data, Fill fill, DType dtype, std::int64_t at, std::int64_t elements,
            Stream stream);
  /// Elements [first, first + count) of the tensor, exactly.
  void read(Fill fill, DType dtype, std::int64_t at, std::int64_t first, std::int64_t count,
            double* out);

 private:
  struct Block {
    std::vector<double> values;
    Buffer device;  ///< empty until fill() needs it
  };
  Block& block(Fill fill, DType dtype);
  LoraBackend& backend_;
  std::map<std::pair<Fill, DType>, Block> blocks_;
};

/// Bytes of an element.
std::int64_t element_bytes(DType dtype);
/// `bits` widened; bits of f32 are not these.
double widen(std::uint16_t bits, DType dtype);

}  // namespace rankfold::tools
