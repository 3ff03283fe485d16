// No operation allocates after one warm-up call: every way to take memory is counted.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "training.hpp"

using namespace rankfold;
using namespace rankfold::reference_test;

namespace {

std::atomic<std::int64_t> num_allocations{0};

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

// The executable's own malloc stands before the C library's for every shared library, too; operator
// new ends there. oneTBB takes memory through malloc or, where it is installed, through tbbmalloc,
// which maps memory of its own: scalable_aligned_malloc and mmap are counted for that.
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

[[gnu::visibility("default")]] void* malloc(std::size_t bytes) {
  ++num_allocations;
  return __libc_malloc(bytes);
}
[[gnu::visibility("default")]] void* calloc(std::size_t count, std::size_t bytes) {
  ++num_allocations;
  return __libc_calloc(count, bytes);
}
[[gnu::visibility("default")]] void* realloc(void* memory, std::size_t bytes) {
  ++num_allocations;
  return __libc_realloc(memory, bytes);
}
[[gnu::visibility("default")]] void* memalign(std::size_t alignment, std::size_t bytes) {
  ++num_allocations;
  return __libc_memalign(alignment, bytes);
}
[[gnu::visibility("default")]] void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  ++num_allocations;
  return __libc_memalign(alignment, bytes);
}
[[gnu::visibility("default")]] int posix_memalign(void** memory, std::size_t alignment,
                                                  std::size_t bytes) {
  ++num_allocations;
  *memory = __libc_memalign(alignment, bytes);
  return *memory != nullptr ? 0 : 12;
}
[[gnu::visibility("default")]] void* mmap(void* address, std::size_t bytes, int protection,
                                          int flags, int file, long offset) {
  ++num_allocations;
  static auto* const real = next<void*(void*, std::size_t, int, int, int, long)>("mmap");
  return real(address, bytes, protection, flags, file, offset);
}
}

TEST_CASE("the counter sees every way to allocate") {
  const auto counts = [](auto&& call) {
    const std::int64_t before = num_allocations;
    call();
    return num_allocations - before;
  };
  void* volatile kept = nullptr;
  (void)device();  // made at the first use
  CHECK(counts([&] { kept = std::malloc(8); }) == 1);
  std::free(kept);
  CHECK(counts([&] { kept = std::aligned_alloc(64, 64); }) == 1);
  std::free(kept);
  CHECK(counts([&] { kept = ::operator new(8); }) == 1);
  ::operator delete(kept);
  CHECK(counts([&] { kept = ::operator new(64, std::align_val_t(64)); }) >= 1);
  ::operator delete(kept, std::align_val_t(64));
  CHECK(counts([&] { kept = device().allocate(64).value(); }) == 1);
  device().deallocate(kept);
}

TEST_CASE("no operation allocates after one warm-up call, in either stream mode") {
  Batch batch({.tokens = 96,
               .in = 512,
               .out = {256, 64},
               .slots = 4,
               .max_rank = 16,
               .x = DType::bf16,
               .y = DType::bf16,
               .a = DType::bf16,
               .b = DType::bf16});
  Elements y = batch.y;
  const ApplyLinearArgs linear = batch.linear(y);
  const ApplyEmbeddingArgs embedding = batch.embedding(y);
  std::vector<float> h(96 * 32);
  ShrinkArgs shrink_args;
  shrink_args.x = linear.x;
  shrink_args.table = linear.table;
  shrink_args.addressing = linear.addressing;
  shrink_args.h = matrix(h.data(), 96, 32);
  ExpandArgs expand_args;
  expand_args.h = shrink_args.h;
  expand_args.table = linear.table;
  expand_args.addressing = linear.addressing;
  expand_args.y = linear.y;
  GatherShrinkArgs gather_args;
  gather_args.ids = embedding.ids;
  gather_args.table = embedding.table;
  gather_args.addressing = embedding.addressing;
  gather_args.h = shrink_args.h;
  Buffer memory =
      Buffer::create(device(), 2 * workspace_bytes(device(), make_problem(linear)).value()).value();
  Buffer grouping = Buffer::create(device(), grouping_bytes(96, 4)).value();
  GroupTokensArgs group_args;
  group_args.num_tokens = 96;
  group_args.num_slots = 4;
  group_args.token_slots = batch.slots.data();
  group_args.memory = grouping.data();
  group_args.memory_bytes = grouping.bytes();

  for (const StreamMode mode : {StreamMode::inline_, StreamMode::worker}) {
    OwnedStream stream = OwnedStream::create(device(), mode).value();
    Event event = device().create_event().value();
    const auto step = [&] {
      LoraAddressing grouped;
      bool good = group_tokens(device(), group_args, stream, &grouped).ok();
      const Workspace workspace = memory.workspace();
      good = good && apply_linear(device(), linear, workspace, stream).ok();
      good = good && apply_embedding(device(), embedding, workspace, stream).ok();
      good = good && shrink(device(), shrink_args, workspace, stream).ok();
      good = good && expand(device(), expand_args, workspace, stream).ok();
      good = good && gather_shrink(device(), gather_args, workspace, stream).ok();
      good = good && device().record(event, stream).ok() && device().wait(stream, event).ok();
      good = good && device().fill(h.data(), 0, 16, stream).ok();
      return good && stream.synchronize().ok();
    };
    REQUIRE(step());
    const std::int64_t before = num_allocations;
    bool good = true;
    for (int i = 0; i < 500; ++i) good = good && step();
    const std::int64_t after = num_allocations;
    CHECK(good);
    CHECK(after - before == 0);
    device().destroy_event(event);
  }
}

TEST_CASE("forward and backward do not allocate after one warm-up call, in either stream mode") {
  TrainingSpec spec{.batch = {.tokens = 700,
                              .in = 300,
                              .out = {280, 64},
                              .slots = 3,
                              .max_rank = 16,
                              .x = DType::bf16,
                              .y = DType::bf16}};
  spec.dx = DType::bf16;
  spec.p = 0.1f;
  Training linear(spec);
  spec.embedding = true;
  Training embedding(spec);
  const ForwardArgs forward_args = linear.forward();
  const BackwardArgs backward_args = linear.backward();
  const ForwardEmbeddingArgs forward_embedding_args = embedding.forward_embedding();
  const BackwardEmbeddingArgs backward_embedding_args = embedding.backward_embedding();
  std::uint64_t bytes = workspace_bytes(device(), make_problem(backward_args)).value();
  bytes = std::max(bytes, workspace_bytes(device(), make_problem(forward_args)).value());
  Buffer memory = Buffer::create(device(), bytes).value();
  for (const StreamMode mode : {StreamMode::inline_, StreamMode::worker}) {
    OwnedStream stream = OwnedStream::create(device(), mode).value();
    const Workspace workspace = memory.workspace();
    const auto step = [&] {
      return forward(device(), forward_args, workspace, stream).ok() &&
             backward(device(), backward_args, workspace, stream).ok() &&
             forward_embedding(device(), forward_embedding_args, workspace, stream).ok() &&
             backward_embedding(device(), backward_embedding_args, workspace, stream).ok() &&
             stream.synchronize().ok();
    };
    REQUIRE(step());
    const std::int64_t before = num_allocations;
    bool good = true;
    for (int i = 0; i < 50; ++i) good = good && step();
    const std::int64_t after = num_allocations;
    CHECK(good);
    CHECK(after - before == 0);
  }
}
