// Bytes: what adapters take, what is allocated, and when.
#include <doctest/doctest.h>

#include <cstdlib>
#include <new>

#include "fixture.hpp"

// Sanitizers bring an operator new of their own.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RANKFOLD_COUNTS_NEW 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define RANKFOLD_COUNTS_NEW 0
#endif
#endif
#ifndef RANKFOLD_COUNTS_NEW
#define RANKFOLD_COUNTS_NEW 1
#endif

#if RANKFOLD_COUNTS_NEW
namespace {
thread_local std::int64_t num_news = 0;
}  // namespace

// Counts what this thread allocates by new: pin and unpin must not. noinline: the compiler pairs an
// inlined free() with the operator new of others.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++num_news;
  if (void* const memory = std::malloc(bytes > 0 ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif

using namespace rankfold;
using namespace rankfold::testing;

TEST_CASE("J3: max_rank costs no arena memory") {
  std::uint64_t bytes[2];
  for (const int i : {0, 1}) {
    FakeBackend backend;
    auto options = small_options(2, 1 << 16);
    options.max_rank = i == 0 ? 8 : 256;
    auto pool = AdapterPool::create(backend, model_targets(), options).value();
    auto stream = OwnedStream::create(backend).value();
    load_ok(pool, {.id = 1, .rank = 8}, stream, stream);
    bytes[i] = pool.stats().arena_in_use;
  }
  CHECK(bytes[0] == bytes[1]);
  CHECK(bytes[0] == arena_bytes_of({.rank = 8}));
}

TEST_CASE("J5: a bank of 256 experts takes the bytes of its real ranks") {
  constexpr std::int32_t kExperts = 256, kRank = 16;
  constexpr std::int64_t kIn = 64, kOut = 48;
  const SliceSpec experts = slice("experts", kOut);
  TargetSpec target;
  target.key = "experts";
  target.kind = TargetKind::experts;
  target.num_slices = 1;
  target.slices = &experts;
  target.in = kIn;
  target.num_experts = kExperts;
  // A [E * rank, in], expert-major; B [out, rank * E], the expert fastest.
  std::vector<std::uint16_t> a(kExperts * kRank * kIn), b(kOut * kRank * kExperts);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<std::uint16_t>(i % 30000);
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<std::uint16_t>(i % 29989);
  std::vector<AdapterBinding> bindings(kExperts);
  for (std::int32_t e = 0; e < kExperts; ++e) {
    bindings[e].expert = e;
    bindings[e].rank = kRank;
    bindings[e].scaling = 1.0f;
    bindings[e].a = const_matrix(a.data() + std::int64_t{e} * kRank * kIn, DType::bf16, kRank, kIn);
    bindings[e].b = const_matrix(b.data() + e, DType::bf16, kOut, kRank);
    bindings[e].b.strides[0] = kRank * kExperts;
    bindings[e].b.strides[1] = kExperts;
  }
  const std::uint64_t real = std::uint64_t{kExperts} * kRank * (kIn + kOut) * 2;
  FakeBackend backend;
  // The fake backend computes no experts; the memory is what counts here.
  backend.set_supports([](const Problem&) { return Status(); });
  auto options = small_options(1, real);
  options.max_rank = 64;
  options.staging_bytes = 8192;
  auto pool = AdapterPool::create(backend, {&target, 1}, options).value();
  auto stream = OwnedStream::create(backend).value();
  const Stream step = stream;
  REQUIRE(pool.load(bindings, stream, {&step, 1}).ok());
  CHECK(backend.counters().device_bytes ==
        static_cast<std::int64_t>(real + kExperts * sizeof(AdapterEntry)));
  CHECK(pool.stats().arena_in_use == real);
  CHECK(pool.stats().weight_bytes == real);
  // The last expert's B is where its entry says, and dense.
  const auto table = pool.table(0).value();
  const AdapterEntry& entry = table.entries[entry_index(table, 0, kExperts - 1, 0)];
  CHECK(entry.b_row_stride == kRank);
  const auto* const packed = static_cast<const std::uint16_t*>(entry.b);
  int wrong = 0;
  for (int o = 0; o < kOut; ++o) {
    for (int j = 0; j < kRank; ++j) {
      wrong +=
          packed[o * kRank + j] != b[static_cast<std::size_t>((o * kRank + j) * kExperts + 255)];
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("memory: arena bytes in use stay within a tenth of the sum of real ranks") {
  // The shapes of a small model; ranks from 1 on, where rounding weighs most.
  const SliceSpec slices[] = {slice("q", 256), slice("k", 64), slice("v", 64)};
  TargetSpec target;
  target.key = "qkv";
  target.num_slices = 3;
  target.slices = slices;
  target.in = 256;
  FakeBackend backend;
  auto options = small_options(8, 1 << 20);
  options.max_rank = 64;
  auto pool = AdapterPool::create(backend, {&target, 1}, options).value();
  auto stream = OwnedStream::create(backend).value();
  const Stream step = stream;
  const std::vector<std::uint16_t> weights(256 * 64 + 16);
  std::uint64_t real = 0;
  for (const std::int32_t rank : {1, 2, 3, 5, 8, 16, 33, 64}) {
    std::vector<AdapterBinding> bindings(3);
    for (std::int32_t i = 0; i < 3; ++i) {
      bindings[i].slice = i;
      bindings[i].rank = rank;
      // Views of different memory, so that no two share a matrix.
      bindings[i].a = const_matrix(weights.data() + i, DType::bf16, rank, 256);
      bindings[i].b = const_matrix(weights.data() + 8 + i, DType::bf16, slices[i].out, rank);
      real += static_cast<std::uint64_t>(rank * (256 + slices[i].out)) * 2;
    }
    REQUIRE(pool.load(bindings, stream, {&step, 1}).ok());
  }
  const PoolStats stats = pool.stats();
  CHECK(stats.num_resident == 8);
  CHECK(stats.weight_bytes == real);
  CHECK(stats.arena_in_use >= real);
  CHECK(stats.arena_in_use <= real + real / 10);
}

TEST_CASE("memory: an A shared by several slices is stored once, at one address") {
  FakeBackend backend;
  auto pool = AdapterPool::create(backend, model_targets(), small_options(1, 1 << 16)).value();
  auto stream = OwnedStream::create(backend).value();
  SyntheticAdapter adapter({.id = 1, .targets = kQkv});
  for (auto& binding : adapter.bindings()) binding.a = adapter.bindings()[0].a;
  const Stream step = stream;
  REQUIRE(pool.load(adapter.view(), stream, {&step, 1}).ok());
  const auto table = pool.table(0).value();
  CHECK(table.entries[0].a == table.entries[1].a);
  CHECK(table.entries[0].a == table.entries[2].a);
  CHECK(table.entries[0].b != table.entries[1].b);
  CHECK(pool.stats().weight_bytes == 4 * 12 * 2 + 16 * 4 * 2);
}

TEST_CASE(
    "memory: load, publish and unload allocate nothing on the device, and no event for ever") {
  FakeBackend backend;
  auto pool = AdapterPool::create(backend, model_targets(),
                                  small_options(2, 2 * arena_bytes_of({.rank = 8, .bias = true})))
                  .value();
  auto upload = OwnedStream::create(backend, StreamMode::worker).value();
  auto step = OwnedStream::create(backend, StreamMode::worker).value();
  FakeCounters warm;
  for (int round = 0; round < 200; ++round) {
    if (round == 50) warm = backend.counters();
    const auto handle =
        load_ok(pool, {.id = round, .rank = 1 + round % 8, .bias = round % 3 == 0}, upload, step);
    const Stream stream = step;
    if (round % 7 == 0) REQUIRE(pool.unload(handle, {&stream, 1}).ok());
  }
  const FakeCounters now = backend.counters();
  CHECK(now.device_allocations == 2);  // arena and tables
  CHECK(now.pinned_allocations == 2);  // ring and images
  CHECK(now.device_frees == 0);
  CHECK(now.pinned_frees == 0);
  CHECK(now.events == warm.events);
  CHECK(now.events <= 40);
}

#if RANKFOLD_COUNTS_NEW
TEST_CASE("memory: pin and unpin allocate nothing, refusals included") {
  FakeBackend backend;
  auto pool = AdapterPool::create(backend, model_targets(), small_options(1, 1 << 16)).value();
  auto stream = OwnedStream::create(backend).value();
  const auto handle = load_ok(pool, {.id = 1}, stream, stream);
  const std::int64_t before = num_news;
  bool ok = true;
  for (int i = 0; i < 10; ++i) {
    ok = ok && pool.pin(handle).ok() && pool.resident(handle) && pool.unpin(handle).ok();
    ok = ok && !pool.unpin(handle).ok() && !pool.pin({0, 0, 99}).ok();
  }
  const std::int64_t after = num_news;
  CHECK(ok);
  CHECK(after == before);
  // The counter counts.
  ::operator delete(::operator new(1));
  CHECK(num_news > after);
}
#endif

TEST_CASE("memory: everything returns with the pool") {
  FakeBackend backend;
  {
    auto upload = OwnedStream::create(backend, StreamMode::worker).value();
    auto step = OwnedStream::create(backend, StreamMode::worker).value();
    auto pool = AdapterPool::create(backend, model_targets(), small_options(2, 1 << 16)).value();
    for (int i = 0; i < 5; ++i) load_ok(pool, {.id = i}, upload, step);
    auto pending = pool.prepare(SyntheticAdapter({.id = 9}).view(), upload);
    REQUIRE(pending.ok());
  }
  const FakeCounters counters = backend.counters();
  CHECK(counters.device_bytes == 0);
  CHECK(counters.pinned_bytes == 0);
  CHECK(counters.events == 0);
  CHECK(counters.streams == 0);
}
