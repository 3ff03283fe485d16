#include "allocation_counter.hpp"

#include <malloc.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>

// glibc's own functions under the names that nobody interposes.
extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* pointer, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);
void __libc_free(void* pointer);
}

namespace rankfold::testing {

namespace {

std::atomic<std::int64_t> allocations{0};
std::atomic<std::int64_t> heap_bytes{0};

void count() noexcept { allocations.fetch_add(1, std::memory_order_relaxed); }

// What a block has room for is the same when it is taken and when it is freed.
void* taken(void* pointer) noexcept {
  heap_bytes.fetch_add(static_cast<std::int64_t>(::malloc_usable_size(pointer)),
                       std::memory_order_relaxed);
  return pointer;
}
void given_back(void* pointer) noexcept {
  heap_bytes.fetch_sub(static_cast<std::int64_t>(::malloc_usable_size(pointer)),
                       std::memory_order_relaxed);
}
void* resized(void* pointer, std::size_t size) noexcept {
  const auto before = static_cast<std::int64_t>(::malloc_usable_size(pointer));
  void* const now = __libc_realloc(pointer, size);
  // A failure leaves the old block; size 0 frees it.
  if (now != nullptr || size == 0) {
    heap_bytes.fetch_sub(before, std::memory_order_relaxed);
    taken(now);
  }
  return now;
}

}  // namespace

std::int64_t num_allocations() noexcept { return allocations.load(std::memory_order_relaxed); }
std::int64_t heap_bytes_in_use() noexcept { return heap_bytes.load(std::memory_order_relaxed); }

extern "C" {

#define RANKFOLD_INTERPOSED [[gnu::visibility("default"), gnu::noinline]]

RANKFOLD_INTERPOSED void* malloc(std::size_t size) {
  count();
  return taken(__libc_malloc(size));
}
RANKFOLD_INTERPOSED void* calloc(std::size_t number, std::size_t size) {
  count();
  return taken(__libc_calloc(number, size));
}
RANKFOLD_INTERPOSED void* realloc(void* pointer, std::size_t size) {
  count();
  return resized(pointer, size);
}
RANKFOLD_INTERPOSED void* reallocarray(void* pointer, std::size_t number, std::size_t size) {
  count();
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(number, size, &bytes)) {
    errno = ENOMEM;
    return nullptr;
  }
  return resized(pointer, bytes);
}
RANKFOLD_INTERPOSED void* memalign(std::size_t alignment, std::size_t size) {
  count();
  return taken(__libc_memalign(alignment, size));
}
RANKFOLD_INTERPOSED void* aligned_alloc(std::size_t alignment, std::size_t size) {
  count();
  return taken(__libc_memalign(alignment, size));
}
RANKFOLD_INTERPOSED int posix_memalign(void** pointer, std::size_t alignment, std::size_t size) {
  count();
  if (alignment % sizeof(void*) != 0 || (alignment & (alignment - 1)) != 0) return EINVAL;
  *pointer = taken(__libc_memalign(alignment, size));
  return *pointer == nullptr ? ENOMEM : 0;
}
RANKFOLD_INTERPOSED void* valloc(std::size_t size) {
  count();
  return taken(__libc_memalign(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)), size));
}
RANKFOLD_INTERPOSED void free(void* pointer) {
  given_back(pointer);
  __libc_free(pointer);
}
// Allocators of their own (that of TBB, for one) come here for memory.
RANKFOLD_INTERPOSED void* mmap(void* address, std::size_t size, int protection, int flags, int file,
                               off_t offset) {
  if ((flags & MAP_ANONYMOUS) != 0) count();
  return reinterpret_cast<void*>(
      ::syscall(SYS_mmap, address, size, protection, flags, file, offset));
}

}  // extern "C"

}  // namespace rankfold::testing
