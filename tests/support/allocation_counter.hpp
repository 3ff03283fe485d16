// Counts what a process allocates: malloc, calloc, realloc, reallocarray, aligned_alloc,
// posix_memalign, memalign, valloc and anonymous mmap are interposed by linking this library into
// an executable; operator new ends in these. Not for sanitizer builds, which interpose them, too.
#pragma once

#include <cstdint>

namespace rankfold::testing {

/// Allocations of all threads since the process began.
std::int64_t num_allocations() noexcept;

/// Bytes of the blocks that all threads have taken from the C library and not freed. Mapped pages
/// are not among them.
std::int64_t heap_bytes_in_use() noexcept;

/// Allocations of all threads since the object was made. Says nothing of who allocated: nothing
/// else may run meanwhile.
class AllocationScope {
 public:
  AllocationScope() noexcept : start_(num_allocations()) {}
  std::int64_t count() const noexcept { return num_allocations() - start_; }

 private:
  std::int64_t start_;
};

}  // namespace rankfold::testing
