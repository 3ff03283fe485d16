// AdapterTable: entries in device memory, written in stream order through pinned staging.
#include <array>
#include <cinttypes>
#include <cstring>
#include <mutex>

#include "guard.hpp"
#include "rankfold/memory.hpp"
#include "rankfold/validate.hpp"
#include "validate_check.hpp"

RANKFOLD_NAMESPACE_BEGIN

using detail::Check;
using detail::guarded;

namespace {

constexpr auto kInvalid = StatusCode::invalid_argument;

std::int64_t entries_a_slot(const TableShape& shape) noexcept {
  return std::int64_t{shape.num_experts} * shape.num_slices;
}

bool slot_in_table(Check& check, const TableShape& shape, std::int32_t slot) noexcept {
  if (slot >= 0 && slot < shape.num_slots) return true;
  return check.fail(kInvalid, "slot is %d; it should be 0 to %d (num_slots of the table is %d)",
                    slot, shape.num_slots - 1, shape.num_slots);
}

bool has_table(Check& check, const LoraBackend* backend) noexcept {
  return backend != nullptr ||
         check.fail(kInvalid, "the table is empty; it should be one that create() made");
}

}  // namespace

// A ring of chunks, each large enough for the entries of one slot. A chunk is written again only
// when the copy that reads it has run: its event says so.
struct AdapterTable::Staging {
  static constexpr std::size_t kNumChunks = 8;
  struct Chunk {
    AdapterEntry* entries = nullptr;
    Event copied;
  };

  explicit Staging(LoraBackend& owner) noexcept : backend(&owner) {}
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging() {
    for (Chunk& chunk : chunks) {
      if (chunk.copied.handle == nullptr) continue;
      (void)backend->synchronize(chunk.copied);
      backend->destroy_event(chunk.copied);
    }
  }

  LoraBackend* backend;
  std::mutex mutex;
  Buffer memory;
  std::array<Chunk, kNumChunks> chunks;
  std::size_t next = 0;
};

AdapterTable::AdapterTable() noexcept = default;
AdapterTable::AdapterTable(AdapterTable&& other) noexcept { swap(other); }
AdapterTable& AdapterTable::operator=(AdapterTable&& other) noexcept {
  AdapterTable moved(std::move(other));
  swap(moved);
  return *this;
}
AdapterTable::~AdapterTable() = default;

void AdapterTable::swap(AdapterTable& other) noexcept {
  std::swap(backend_, other.backend_);
  std::swap(view_, other.view_);
  std::swap(entries_, other.entries_);
  std::swap(staging_, other.staging_);
}

Result<AdapterTable> AdapterTable::create(LoraBackend& backend, const TableShape& shape) noexcept {
  return guarded([&]() -> Result<AdapterTable> {
    Status status;
    Check check("AdapterTable::create", backend.device(), &status);
    const std::int64_t a_slot = entries_a_slot(shape);
    std::int64_t bytes = 0;
    if (!check.shape(shape, "shape.")) return status;
    if (!detail::extent_bytes(shape.num_slots, a_slot, a_slot, sizeof(AdapterEntry), &bytes)) {
      check.fail(kInvalid, "shape has %d x %d x %d entries; they should be below 2^63 bytes",
                 shape.num_slots, shape.num_experts, shape.num_slices);
      return status;
    }

    AdapterTable table;
    table.backend_ = &backend;
    auto entries = Buffer::create(backend, static_cast<std::size_t>(bytes));
    if (!entries.ok()) return entries.status();
    table.entries_ = std::move(*entries);
    table.view_ = {shape, table.entries_.as<AdapterEntry>(), a_slot, backend.device()};

    table.staging_ = std::make_unique<Staging>(backend);
    Staging& staging = *table.staging_;
    const auto chunk_bytes = static_cast<std::size_t>(a_slot) * sizeof(AdapterEntry);
    auto memory = Buffer::create(backend, chunk_bytes * Staging::kNumChunks, MemoryKind::pinned);
    if (!memory.ok()) return memory.status();
    staging.memory = std::move(*memory);
    for (std::size_t i = 0; i < Staging::kNumChunks; ++i) {
      staging.chunks[i].entries = staging.memory.as<AdapterEntry>() + i * chunk_bytes / 64;
      const auto event = backend.create_event();
      if (!event.ok()) return event.status();
      staging.chunks[i].copied = *event;
    }

    if (bytes != 0) {
      auto stream = OwnedStream::create(backend);
      if (!stream.ok()) return stream.status();
      status = backend.fill(table.entries_.data(), 0, table.entries_.bytes(), stream->get());
      if (status.ok()) status = stream->synchronize();
      if (!status.ok()) return status;
    }
    return table;
  });
}

Status AdapterTable::set_entry(std::int32_t slot, std::int32_t expert, std::int32_t slice,
                               const AdapterEntry& entry, Stream stream) noexcept {
  Status status;
  Check check("set_entry", view_.device, &status);
  const TableShape& shape = view_.shape;
  if (!has_table(check, backend_) || !slot_in_table(check, shape, slot)) return status;
  if (expert < 0 || expert >= shape.num_experts) {
    check.fail(kInvalid, "expert is %d; it should be 0 to %d (num_experts of the table is %d)",
               expert, shape.num_experts - 1, shape.num_experts);
    return status;
  }
  AdapterEntry whole = entry;
  if (whole.in_limit == 0) whole.in_limit = shape.in;
  if (whole.a_row_stride == 0) whole.a_row_stride = whole.in_limit;
  if (whole.b_row_stride == 0) whole.b_row_stride = whole.rank;
  if (!check.entry(whole, shape, slice)) return status;
  if (stream.handle == nullptr) {
    check.fail(kInvalid, "stream is null; it should be one that the backend or the host made");
    return status;
  }
  if (whole.rank == 0) whole = {};
  return write_entries(slot, expert * shape.num_slices + slice, 1, &whole, stream);
}

Status AdapterTable::clear_slot(std::int32_t slot, Stream stream) noexcept {
  Status status;
  Check check("clear_slot", view_.device, &status);
  if (!has_table(check, backend_) || !slot_in_table(check, view_.shape, slot)) return status;
  return backend_->fill(entries_.as<AdapterEntry>() + slot * view_.slot_stride, 0,
                        static_cast<std::size_t>(view_.slot_stride) * sizeof(AdapterEntry), stream);
}

Status AdapterTable::write_entries(std::int32_t slot, std::int64_t first, std::int64_t count,
                                   const AdapterEntry* entries, Stream stream) noexcept {
  return guarded([&]() -> Status {
    const std::lock_guard lock(staging_->mutex);
    Staging::Chunk& chunk = staging_->chunks[staging_->next];
    staging_->next = (staging_->next + 1) % Staging::kNumChunks;
    if (Status status = backend_->synchronize(chunk.copied); !status.ok()) return status;
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(AdapterEntry);
    std::memcpy(static_cast<void*>(chunk.entries), entries, bytes);
    if (Status status =
            backend_->copy(entries_.as<AdapterEntry>() + slot * view_.slot_stride + first,
                           chunk.entries, bytes, CopyKind::host_to_device, stream);
        !status.ok()) {
      return status;
    }
    Status recorded = backend_->record(chunk.copied, stream);
    // Without the event nobody would know when the chunk is free.
    if (!recorded.ok()) (void)backend_->synchronize(stream);
    return recorded;
  });
}

namespace {

// One of the stacked tensors: [slots, rows, columns], dense rows of columns.
bool stacked(Check& check, const char* name, const ConstTensorView& view, DType dtype,
             std::int64_t num_slots, std::int64_t rows, const char* rows_of, std::int64_t columns,
             const char* columns_of) noexcept {
  const auto dim = [&](int i, std::int64_t expected, const char* expected_of) {
    return view.sizes[i] == expected ||
           check.fail(kInvalid,
                      "%s has size %" PRId64 " in dimension %d; it should have %" PRId64 " (%s)",
                      name, view.sizes[i], i, expected, expected_of);
  };
  if (view.num_dims != 3) {
    return check.fail(kInvalid, "%s has %d dimensions; it should have 3, [num_slots, %s, %s]", name,
                      view.num_dims, rows_of, columns_of);
  }
  if (view.dtype != dtype) {
    return check.fail(kInvalid, "%s has dtype %s; it should be %s, the table's", name,
                      to_string(view.dtype), to_string(dtype));
  }
  if (!dim(0, num_slots, "num_slots") || !dim(1, rows, rows_of) || !dim(2, columns, columns_of)) {
    return false;
  }
  if (view.strides[2] != 1) {
    return check.fail(kInvalid, "%s has element stride %" PRId64 "; it should be 1", name,
                      view.strides[2]);
  }
  if (view.strides[1] < columns || view.strides[0] < 0) {
    const bool row = view.strides[1] < columns;
    return check.fail(kInvalid, "%s has %s stride %" PRId64 "; it should be at least %" PRId64,
                      name, row ? "row" : "slot", view.strides[row ? 1 : 0], row ? columns : 0);
  }
  std::int64_t slot_bytes = 0;
  std::int64_t bytes = 0;
  const auto element_bytes = static_cast<std::int64_t>(size_of(dtype));
  if (!detail::extent_bytes(rows, columns, view.strides[1], element_bytes, &slot_bytes) ||
      !detail::extent_bytes(num_slots, slot_bytes / element_bytes, view.strides[0], element_bytes,
                            &bytes)) {
    return check.fail(kInvalid,
                      "%s has strides %" PRId64 " and %" PRId64
                      "; it should end inside the address space",
                      name, view.strides[0], view.strides[1]);
  }
  return check.array(name, view.data, bytes / element_bytes, element_bytes, false) &&
         check.device(name, view.device);
}

const void* element(const ConstTensorView& view, std::int64_t slot, std::int64_t row) noexcept {
  const std::int64_t elements = slot * view.strides[0] + row * view.strides[1];
  return static_cast<const std::byte*>(view.data) +
         elements * static_cast<std::int64_t>(size_of(view.dtype));
}

}  // namespace

Status AdapterTable::bind_stacked(const ConstTensorView& a, const ConstTensorView& b,
                                  const std::int32_t* ranks, const float* scalings,
                                  Stream stream) noexcept {
  Status status;
  Check check("bind_stacked", view_.device, &status);
  const TableShape& shape = view_.shape;
  const std::int32_t num_slices = shape.num_slices;
  if (!has_table(check, backend_)) return status;
  if (shape.num_experts != 1) {
    check.fail(kInvalid, "the table has %d experts; it should have 1", shape.num_experts);
    return status;
  }
  if (!stacked(check, "a", a, shape.a_dtype, shape.num_slots, h_shape(shape, 0).columns,
               "num_slices * max_rank", shape.in, "in") ||
      !stacked(check, "b", b, shape.b_dtype, shape.num_slots, total_out(shape), "sum of out",
               shape.max_rank, "max_rank") ||
      !check.array("ranks", ranks, std::int64_t{shape.num_slots} * num_slices, 4, false) ||
      !check.array("scalings", scalings, std::int64_t{shape.num_slots} * num_slices, 4, false)) {
    return status;
  }
  // Twice over the slots: nothing is written when one of the last is bad.
  for (const bool write : {false, true}) {
    for (std::int32_t slot = 0; slot < shape.num_slots; ++slot) {
      std::array<AdapterEntry, kMaxSlices> entries;
      std::int64_t b_row = 0;
      for (std::int32_t i = 0; i < num_slices; ++i) {
        const std::int64_t at = std::int64_t{slot} * num_slices + i;
        AdapterEntry& entry = entries[static_cast<std::size_t>(i)];
        entry.rank = ranks[at];
        entry.scaling = scalings[at];
        entry.in_limit = shape.in;
        entry.a_row_stride = a.strides[1];
        entry.b_row_stride = b.strides[1];
        if (entry.rank > 0 && entry.rank <= shape.max_rank) {
          entry.a = element(a, slot, std::int64_t{i} * shape.max_rank);
          entry.b = element(b, slot, b_row);
        }
        b_row += shape.out[i];
        if (!write) {
          Status entry_status;
          Check entry_check("entry", view_.device, &entry_status);
          if (!entry_check.entry(entry, shape, i)) {
            check.fail(entry_status.code(), "slot %d, slice %d: %s", slot, i,
                       entry_status.message());
            return status;
          }
        } else if (entry.rank == 0) {
          entry = {};
        }
      }
      if (!write) continue;
      status = write_entries(slot, 0, num_slices, entries.data(), stream);
      if (!status.ok()) return status;
    }
  }
  return status;
}

RANKFOLD_NAMESPACE_END
