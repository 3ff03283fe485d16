// The counter sees every way of allocating, on every thread.
#include <doctest/doctest.h>
#include <malloc.h>
#include <sys/mman.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "allocation_counter.hpp"

namespace rankfold::testing {

namespace {

// Keeps an allocation from being optimised away.
void use(void* pointer) { asm volatile("" : : "g"(pointer) : "memory"); }

template <class Allocate>
std::int64_t count_of(Allocate&& allocate) {
  const AllocationScope scope;
  void* const pointer = allocate();
  const std::int64_t count = scope.count();
  use(pointer);
  std::free(pointer);
  return count;
}

}  // namespace

TEST_CASE("nothing is counted where nothing is allocated") {
  const AllocationScope scope;
  volatile int sum = 0;
  for (int i = 0; i < 1000; ++i) sum = sum + i;
  CHECK(scope.count() == 0);
}

TEST_CASE("every function of the C library is caught") {
  CHECK(count_of([] { return std::malloc(100); }) == 1);
  CHECK(count_of([] { return std::malloc(std::size_t{1} << 22); }) == 1);
  CHECK(count_of([] { return std::calloc(3, 40); }) == 1);
  CHECK(count_of([] { return std::realloc(nullptr, 64); }) == 1);
  CHECK(count_of([] { return ::reallocarray(nullptr, 8, 8); }) == 1);
  CHECK(count_of([] { return std::aligned_alloc(64, 128); }) == 1);
  CHECK(count_of([] { return ::memalign(256, 10); }) == 1);
  CHECK(count_of([] { return ::valloc(10); }) == 1);
  CHECK(count_of([] {
          void* pointer = nullptr;
          return ::posix_memalign(&pointer, 128, 10) == 0 ? pointer : nullptr;
        }) == 1);
}

TEST_CASE("memory mapped past the C library is caught") {
  const AllocationScope scope;
  void* const pages =
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(pages != MAP_FAILED);
  CHECK(scope.count() == 1);
  CHECK(::munmap(pages, 4096) == 0);
}

TEST_CASE("operator new in every form is caught") {
  {
    const AllocationScope scope;
    const auto number = std::make_unique<int>(1);
    use(number.get());
    CHECK(scope.count() == 1);
  }
  {
    const AllocationScope scope;
    const auto array = std::make_unique<double[]>(10);
    use(array.get());
    CHECK(scope.count() == 1);
  }
  {
    const AllocationScope scope;
    void* const aligned = ::operator new (100, std::align_val_t{128});
    use(aligned);
    CHECK(scope.count() == 1);
    ::operator delete (aligned, std::align_val_t{128});
  }
  {
    const AllocationScope scope;
    void* const unthrown = ::operator new(100, std::nothrow);
    use(unthrown);
    CHECK(scope.count() == 1);
    ::operator delete(unthrown);
  }
  const AllocationScope scope;
  std::vector<int> numbers(100);
  std::string text(100, 'x');
  use(numbers.data());
  use(text.data());
  CHECK(scope.count() == 2);
}

TEST_CASE("bytes in use return when blocks are freed, whoever frees them") {
  // doctest allocates, too: nothing is checked before the end.
  const std::int64_t before = heap_bytes_in_use();
  void* block = std::malloc(1000);
  use(block);
  const std::int64_t taken = heap_bytes_in_use();
  block = std::realloc(block, 5000);
  use(block);
  const std::int64_t grown = heap_bytes_in_use();
  void* other = nullptr;
  const bool aligned = ::posix_memalign(&other, 128, 700) == 0;
  use(other);
  const std::int64_t both = heap_bytes_in_use();
  std::thread([&] { std::free(other); }).join();
  std::free(block);
  std::free(nullptr);
  const std::int64_t after = heap_bytes_in_use();
  CHECK(aligned);
  CHECK(taken - before >= 1000);
  CHECK(taken - before < 1100);
  CHECK(grown - before >= 5000);
  CHECK(grown - before < 5100);
  CHECK(both - grown >= 700);
  CHECK(after - before < 1000);  // what the C library keeps of the thread
}

TEST_CASE("what another thread allocates is counted") {
  const AllocationScope scope;
  std::int64_t on_thread = 0;
  std::thread([&] {
    const AllocationScope inner;
    use(std::make_unique<int>(1).get());
    on_thread = inner.count();
  }).join();
  CHECK(on_thread == 1);
  CHECK(scope.count() >= 2);  // the thread itself, too
}

}  // namespace rankfold::testing
