#include "pool/upload.hpp"

#include <algorithm>
#include <cstring>

#include "pool/arena.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

namespace {

Status overflows(const PlannedMatrix& matrix, const PoolLayout& layout) {
  return Status::format(StatusCode::invalid_argument,
                        "pool: target '%s': a weight of %s is too large for the table's %s",
                        layout.targets[static_cast<std::size_t>(matrix.target)].key.c_str(),
                        matrix.name == 'b' ? "bias" : (matrix.name == 'A' ? "A" : "B"),
                        to_string(matrix.dtype));
}

// Fills chunks of the ring with what is consecutive in the arena.
class ChunkWriter {
 public:
  ChunkWriter(std::byte* arena, StagingRing& ring, Stream stream)
      : arena_(arena), ring_(ring), stream_(stream) {}
  ~ChunkWriter() {
    if (chunk_ != kNone) ring_.drop(chunk_);
  }
  ChunkWriter(const ChunkWriter&) = delete;
  ChunkWriter& operator=(const ChunkWriter&) = delete;

  /// Makes the next bytes written those at this offset of the arena.
  Status seek(std::uint64_t offset) {
    if (chunk_ != kNone && begin_ + used_ == offset) return {};
    if (Status status = flush(); !status.ok()) return status;
    begin_ = offset;
    return {};
  }
  /// Room for at least one element; `*room` says how many bytes.
  Result<std::byte*> reserve(std::size_t* room) {
    if (chunk_ != kNone && used_ == ring_.chunk_bytes()) {
      if (Status status = flush(); !status.ok()) return status;
    }
    if (chunk_ == kNone) {
      const auto chunk = ring_.claim();
      if (!chunk.ok()) return chunk.status();
      chunk_ = *chunk;
    }
    *room = ring_.chunk_bytes() - used_;
    return ring_.data(chunk_) + used_;
  }
  void advance(std::size_t bytes) { used_ += bytes; }

  Status flush() {
    if (chunk_ == kNone) return {};
    const std::size_t chunk = chunk_;
    const std::size_t bytes = used_;
    const std::uint64_t begin = begin_;
    chunk_ = kNone;
    begin_ += used_;
    used_ = 0;
    return ring_.submit(chunk, arena_ + begin, bytes, stream_);
  }

 private:
  static constexpr std::size_t kNone = StagingRing::kNumChunks;
  std::byte* arena_;
  StagingRing& ring_;
  Stream stream_;
  std::size_t chunk_ = kNone;
  std::uint64_t begin_ = 0;
  std::size_t used_ = 0;
};

Status write_matrix(const PlannedMatrix& matrix, std::uint64_t rounded, const PoolLayout& layout,
                    ChunkWriter& writer) {
  const std::int64_t count = matrix.source.rows * matrix.source.columns;
  const auto size = static_cast<std::int64_t>(size_of(matrix.dtype));
  for (std::int64_t done = 0; done < count;) {
    std::size_t room = 0;
    const auto to = writer.reserve(&room);
    if (!to.ok()) return to.status();
    const std::int64_t part = std::min(count - done, static_cast<std::int64_t>(room) / size);
    if (!convert(matrix.source, done, part, matrix.dtype, *to)) return overflows(matrix, layout);
    writer.advance(static_cast<std::size_t>(part * size));
    done += part;
  }
  // Chunks are whole units, so the padding never crosses into the next.
  if (const auto padding = static_cast<std::size_t>(rounded - matrix.bytes); padding > 0) {
    std::size_t room = 0;
    const auto to = writer.reserve(&room);
    if (!to.ok()) return to.status();
    std::memset(*to, 0, padding);
    writer.advance(padding);
  }
  return {};
}

}  // namespace

Status upload(const Plan& plan, const PoolLayout& layout, const std::vector<std::uint64_t>& offsets,
              std::byte* arena, StagingRing& ring, Stream stream) {
  ChunkWriter writer(arena, ring, stream);
  for (std::size_t i = 0; i < plan.matrices.size(); ++i) {
    if (Status status = writer.seek(offsets[i]); !status.ok()) return status;
    if (Status status = write_matrix(plan.matrices[i], plan.sizes[i], layout, writer);
        !status.ok()) {
      return status;
    }
  }
  return writer.flush();
}

Status keep_on_host(Plan& plan, const PoolLayout& layout, std::vector<std::byte>& copy) {
  copy.resize(plan.rounded_bytes);
  std::size_t at = 0;
  for (std::size_t i = 0; i < plan.matrices.size(); ++i) {
    PlannedMatrix& matrix = plan.matrices[i];
    HostMatrix& source = matrix.source;
    std::byte* const to = copy.data() + at;
    if (!convert(source, 0, source.rows * source.columns, matrix.dtype, to)) {
      return overflows(matrix, layout);
    }
    source = {to, matrix.dtype, source.rows, source.columns, source.columns, 1};
    at += plan.sizes[i];
  }
  return {};
}

void write_image(const Plan& plan, const PoolLayout& layout,
                 const std::vector<std::uint64_t>& offsets, const std::byte* arena,
                 AdapterEntry* image) {
  std::fill_n(image, layout.slot_entries, AdapterEntry{});
  for (const PlannedEntry& planned : plan.entries) {
    AdapterEntry& entry = image[planned.index];
    entry.a = arena + offsets[planned.a];
    entry.b = arena + offsets[planned.b];
    if (planned.bias != PlannedEntry::kNone) {
      entry.bias = reinterpret_cast<const float*>(arena + offsets[planned.bias]);
    }
    entry.rank = planned.rank;
    entry.scaling = planned.scaling;
    entry.a_row_stride = planned.in_limit;
    entry.b_row_stride = planned.rank;
    entry.in_limit = planned.in_limit;
  }
}

}  // namespace detail
RANKFOLD_NAMESPACE_END
