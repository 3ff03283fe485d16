#include "allocation_counter.hpp"

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

void count() noexcept { allocations.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

std::int64_t num_allocations() noexcept { return allocations.load(std::memory_order_relaxed); }

extern "C" {

#define RANKFOLD_INTERPOSED [[gnu::visibility("default"), gnu::noinline]]

RANKFOLD_INTERPOSED void* malloc(std::size_t size) {
  count();
  return __libc_malloc(size);
}
RANKFOLD_INTERPOSED void* calloc(std::size_t number, std::size_t size) {
  count();
  return __libc_calloc(number, size);
}
RANKFOLD_INTERPOSED void* realloc(void* pointer, std::size_t size) {
  count();
  return __libc_realloc(pointer, size);
}
RANKFOLD_INTERPOSED void* reallocarray(void* pointer, std::size_t number, std::size_t size) {
  count();
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(number, size, &bytes)) {
    errno = ENOMEM;
    return nullptr;
  }
  return __libc_realloc(pointer, bytes);
}
RANKFOLD_INTERPOSED void* memalign(std::size_t alignment, std::size_t size) {
  count();
  return __libc_memalign(alignment, size);
}
RANKFOLD_INTERPOSED void* aligned_alloc(std::size_t alignment, std::size_t size) {
  count();
  return __libc_memalign(alignment, size);
}
RANKFOLD_INTERPOSED int posix_memalign(void** pointer, std::size_t alignment, std::size_t size) {
  count();
  if (alignment % sizeof(void*) != 0 || (alignment & (alignment - 1)) != 0) return EINVAL;
  *pointer = __libc_memalign(alignment, size);
  return *pointer == nullptr ? ENOMEM : 0;
}
RANKFOLD_INTERPOSED void* valloc(std::size_t size) {
  count();
  return __libc_memalign(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)), size);
}
RANKFOLD_INTERPOSED void free(void* pointer) { __libc_free(pointer); }
// Allocators of their own (that of TBB, for one) come here for memory.
RANKFOLD_INTERPOSED void* mmap(void* address, std::size_t size, int protection, int flags, int file,
                               off_t offset) {
  if ((flags & MAP_ANONYMOUS) != 0) count();
  return reinterpret_cast<void*>(
      ::syscall(SYS_mmap, address, size, protection, flags, file, offset));
}

}  // extern "C"

}  // namespace rankfold::testing
