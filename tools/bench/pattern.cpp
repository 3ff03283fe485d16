#include "pattern.hpp"

#include <algorithm>
#include <cstring>

#include "must.hpp"

namespace rankfold::tools {
namespace {

// Prime, and far from the width of any row, so that rows differ.
constexpr std::int64_t kPeriod = 1'000'003;

float magnitude(Fill fill) {
  switch (fill) {
    case Fill::a:
      return 0.05f;
    case Fill::b:
    case Fill::dx:
      return 0.5f;
    default:
      return 1.0f;
  }
}

void append(std::vector<std::byte>& bytes, float value, DType dtype, double& rounded) {
  const auto add = [&](const auto& element) {
    const auto* const from = reinterpret_cast<const std::byte*>(&element);
    bytes.insert(bytes.end(), from, from + sizeof(element));
  };
  if (dtype == DType::f32) {
    rounded = value;
    return add(value);
  }
  const std::uint16_t bits = dtype == DType::f16 ? to_half(value).bits : to_bfloat16(value).bits;
  rounded = widen(bits, dtype);
  add(bits);
}

}  // namespace

std::int64_t element_bytes(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

double widen(std::uint16_t bits, DType dtype) {
  return dtype == DType::f16 ? to_float(Half{bits}) : to_float(BFloat16{bits});
}

Patterns::Block& Patterns::block(Fill fill, DType dtype) {
  Block& block = blocks_[{fill, dtype}];
  if (!block.values.empty()) return block;
  std::uint64_t state =
      0x2545f4914f6cdd1dULL + static_cast<std::uint64_t>(fill) * 0x9e3779b97f4a7c15ULL;
  std::vector<std::byte> bytes;
  bytes.reserve(static_cast<std::size_t>(kPeriod * element_bytes(dtype)));
  block.values.resize(static_cast<std::size_t>(kPeriod));
  for (double& value : block.values) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    const float uniform = static_cast<float>(static_cast<std::int32_t>(state >> 32)) * 0x1p-31f;
    append(bytes, uniform * magnitude(fill), dtype, value);
  }
  Result<OwnedStream> stream = OwnedStream::create(backend_);
  must(stream.status());
  Result<Buffer> device = Buffer::create(backend_, bytes.size());
  must(device.status());
  block.device = std::move(*device);
  must(backend_.copy(block.device.data(), bytes.data(), bytes.size(), CopyKind::host_to_device,
                     *stream));
  must(stream->synchronize());
  return block;
}

void Patterns::fill(void* data, Fill fill, DType dtype, std::int64_t at, std::int64_t elements,
                    Stream stream) {
  const Block& source = block(fill, dtype);
  const std::int64_t size = element_bytes(dtype);
  auto* to = static_cast<std::byte*>(data);
  std::int64_t phase = at / 2 % kPeriod;
  while (elements > 0) {
    const std::int64_t count = std::min(elements, kPeriod - phase);
    const auto bytes = static_cast<std::size_t>(count * size);
    must(backend_.copy(to, source.device.as<std::byte>() + phase * size, bytes,
                       CopyKind::device_to_device, stream));
    to += bytes;
    elements -= count;
    phase = 0;
  }
}

void Patterns::read(Fill fill, DType dtype, std::int64_t at, std::int64_t first, std::int64_t count,
                    double* out) {
  const std::vector<double>& values = block(fill, dtype).values;
  std::int64_t phase = (at / 2 + first) % kPeriod;
  while (count > 0) {
    const std::int64_t part = std::min(count, kPeriod - phase);
    std::copy_n(values.begin() + phase, part, out);
    out += part;
    count -= part;
    phase = 0;
  }
}

}  // namespace rankfold::tools
