#include "rankfold/safetensors.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "adapter/safetensors_header.hpp"
#include "adapter/text.hpp"
#include "guard.hpp"

RANKFOLD_NAMESPACE_BEGIN

namespace {

constexpr std::uint64_t kLengthBytes = 8;
using detail::kMaxHeaderBytes;

std::uint64_t little_endian(const std::byte* bytes) noexcept {
  std::uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | static_cast<std::uint64_t>(bytes[i]);
  return value;
}

// The header's length, by comparisons that cannot overflow. `start` has the first 8 bytes of
// `file_bytes`, or all of them where they are fewer.
Result<std::uint64_t> header_length(const std::byte* start, std::uint64_t file_bytes) {
  if (file_bytes < kLengthBytes) {
    return Status::format(StatusCode::malformed_file,
                          "%llu bytes are too few for a safetensors file, the header length alone "
                          "takes 8",
                          static_cast<unsigned long long>(file_bytes));
  }
  const std::uint64_t length = little_endian(start);
  const std::uint64_t rest = file_bytes - kLengthBytes;
  if (length == 0) return Status(StatusCode::malformed_file, "the header length is 0");
  if (length > kMaxHeaderBytes || length > rest) {
    return Status::format(StatusCode::malformed_file,
                          "the header length is %llu, the most is %llu and %llu bytes follow it",
                          static_cast<unsigned long long>(length),
                          static_cast<unsigned long long>(kMaxHeaderBytes),
                          static_cast<unsigned long long>(rest));
  }
  return length;
}

Result<std::string_view> header_of(const std::vector<std::byte>& bytes) {
  const auto length = header_length(bytes.data(), bytes.size());
  if (!length) return length.status();
  return std::string_view(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes,
                          static_cast<std::size_t>(*length));
}

Status in_file(std::string_view name, const Status& status) {
  return Status(status.code(), detail::quote(name) + ": " + status.message());
}

}  // namespace

namespace detail {

Status check_file_start(std::FILE* file, std::uintmax_t file_bytes) {
  std::array<std::byte, kLengthBytes> start{};
  const std::size_t count = std::min<std::uintmax_t>(start.size(), file_bytes);
  const Status short_read(StatusCode::invalid_argument, "the file could not be read");
  if (std::fread(start.data(), 1, count, file) != count) return short_read;
  const auto length = header_length(start.data(), file_bytes);
  if (!length) return length.status();
  std::string json(static_cast<std::size_t>(*length), '\0');
  if (std::fread(json.data(), 1, json.size(), file) != json.size()) return short_read;
  const auto header = parse_header(json, file_bytes - kLengthBytes - *length);
  return header ? Status() : header.status();
}

}  // namespace detail

struct Safetensors::State {
  std::vector<std::byte> bytes;
  detail::Header header;  // owns the strings
  std::vector<SafetensorsEntry> entries;
  std::vector<SafetensorsMetadata> metadata;
  std::vector<std::uint32_t> by_name;
};

Safetensors::Safetensors(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
Safetensors::Safetensors(Safetensors&&) noexcept = default;
Safetensors& Safetensors::operator=(Safetensors&&) noexcept = default;
Safetensors::~Safetensors() = default;

Result<Safetensors> Safetensors::read(std::string_view path) {
  return detail::guarded([&]() -> Result<Safetensors> {
    auto bytes = detail::read_file(std::string(path), UINTMAX_MAX, &detail::check_file_start);
    if (!bytes) return bytes.status();
    return parse(std::move(*bytes), path);
  });
}

Result<Safetensors> Safetensors::parse(std::vector<std::byte> bytes, std::string_view name) {
  return detail::guarded([&]() -> Result<Safetensors> {
    const auto json = header_of(bytes);
    if (!json) return in_file(name, json.status());
    const std::uint64_t data_begin = kLengthBytes + json->size();
    auto header = detail::parse_header(*json, bytes.size() - data_begin);
    if (!header) return in_file(name, header.status());

    auto state = std::make_unique<State>();
    state->bytes = std::move(bytes);
    state->header = std::move(*header);
    const std::byte* data = state->bytes.data() + data_begin;
    for (const detail::HeaderTensor& tensor : state->header.tensors) {
      SafetensorsEntry& entry = state->entries.emplace_back();
      entry.name = tensor.name.c_str();
      entry.dtype_name = tensor.dtype->name;
      entry.has_dtype = tensor.dtype->has_dtype;
      entry.dtype = tensor.dtype->dtype;
      entry.num_dims = tensor.num_dims;
      std::copy_n(tensor.sizes, kSafetensorsMaxDims, entry.sizes);
      entry.data = data + tensor.begin;
      entry.bytes = tensor.end - tensor.begin;
      state->by_name.push_back(static_cast<std::uint32_t>(state->by_name.size()));
    }
    std::sort(state->by_name.begin(), state->by_name.end(), [&](std::uint32_t a, std::uint32_t b) {
      return state->header.tensors[a].name < state->header.tensors[b].name;
    });
    for (const auto& [key, value] : state->header.metadata) {
      state->metadata.push_back({key.c_str(), value.c_str()});
    }
    return Safetensors(std::move(state));
  });
}

std::span<const SafetensorsEntry> Safetensors::entries() const noexcept {
  if (state_ == nullptr) return {};
  return state_->entries;
}

const SafetensorsEntry* Safetensors::find(std::string_view name) const noexcept {
  if (state_ == nullptr) return nullptr;
  const auto& tensors = state_->header.tensors;
  const auto found = std::lower_bound(
      state_->by_name.begin(), state_->by_name.end(), name,
      [&](std::uint32_t index, std::string_view wanted) { return tensors[index].name < wanted; });
  if (found == state_->by_name.end() || tensors[*found].name != name) return nullptr;
  return &state_->entries[*found];
}

std::span<const SafetensorsMetadata> Safetensors::metadata() const noexcept {
  if (state_ == nullptr) return {};
  return state_->metadata;
}

const char* Safetensors::find_metadata(std::string_view key) const noexcept {
  for (const SafetensorsMetadata& pair : metadata()) {
    if (key == pair.key) return pair.value;
  }
  return nullptr;
}

RANKFOLD_NAMESPACE_END
