#include "pool/arena.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

Arena::Arena(std::uint64_t bytes) : bytes_(bytes / kArenaUnit * kArenaUnit), free_bytes_(bytes_) {
  if (bytes_ > 0) free_[0] = bytes_;
}

bool Arena::place(std::span<const std::uint64_t> sizes, Placement* placement) {
  const std::uint64_t total = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
  if (total > free_bytes_) return false;
  if (total == 0) {
    *placement = {{}, std::vector<std::uint64_t>(sizes.size(), 0)};
    return true;
  }
  return place_together(sizes, total, placement) || place_split(sizes, placement);
}

bool Arena::place_together(std::span<const std::uint64_t> sizes, std::uint64_t total,
                           Placement* placement) {
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->second >= total && (best == free_.end() || it->second < best->second)) best = it;
  }
  if (best == free_.end()) return false;
  Placement found;
  found.extents.push_back({best->first, total});
  std::uint64_t at = best->first;
  for (const std::uint64_t size : sizes) {
    found.offsets.push_back(at);
    at += size;
  }
  take(found.extents.front());
  *placement = std::move(found);
  return true;
}

bool Arena::place_split(std::span<const std::uint64_t> sizes, Placement* placement) {
  Arena trial = *this;
  Placement found;
  Extent room;  // what is left of the extent being filled
  for (const std::uint64_t size : sizes) {
    if (size > room.bytes || found.extents.empty()) {
      const auto largest =
          std::max_element(trial.free_.begin(), trial.free_.end(),
                           [](const auto& a, const auto& b) { return a.second < b.second; });
      if (largest == trial.free_.end() || largest->second < size) return false;
      room = {largest->first, largest->second};
      found.extents.push_back({room.offset, 0});
    }
    found.offsets.push_back(room.offset);
    if (size > 0) trial.take({room.offset, size});
    room.offset += size;
    room.bytes -= size;
    found.extents.back().bytes += size;
  }
  *this = std::move(trial);
  *placement = std::move(found);
  return true;
}

void Arena::release(const Extent& extent) {
  if (extent.bytes == 0) return;
  free_bytes_ += extent.bytes;
  auto [it, inserted] = free_.emplace(extent.offset, extent.bytes);
  const auto next = std::next(it);
  if (next != free_.end() && it->first + it->second == next->first) {
    it->second += next->second;
    free_.erase(next);
  }
  if (it == free_.begin()) return;
  const auto previous = std::prev(it);
  if (previous->first + previous->second == it->first) {
    previous->second += it->second;
    free_.erase(it);
  }
}

void Arena::release(std::span<const Extent> extents) {
  for (const Extent& extent : extents) release(extent);
}

void Arena::take(const Extent& extent) {
  if (extent.bytes == 0) return;
  const auto it = std::prev(free_.upper_bound(extent.offset));
  const std::uint64_t begin = it->first;
  const std::uint64_t end = begin + it->second;
  free_.erase(it);
  if (begin < extent.offset) free_[begin] = extent.offset - begin;
  if (extent.offset + extent.bytes < end) {
    free_[extent.offset + extent.bytes] = end - extent.offset - extent.bytes;
  }
  free_bytes_ -= extent.bytes;
}

std::vector<Extent> Arena::free_within(const Extent& extent) const {
  std::vector<Extent> parts;
  const std::uint64_t end = extent.offset + extent.bytes;
  for (const auto& [offset, bytes] : free_) {
    const std::uint64_t from = std::max(offset, extent.offset);
    const std::uint64_t to = std::min(offset + bytes, end);
    if (from < to) parts.push_back({from, to - from});
  }
  return parts;
}

std::uint64_t Arena::largest_free() const noexcept {
  std::uint64_t largest = 0;
  for (const auto& [offset, bytes] : free_) largest = std::max(largest, bytes);
  return largest;
}

}  // namespace detail
RANKFOLD_NAMESPACE_END
