// What prepare refuses, by name, before anything is reserved.
#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <limits>
#include <string>

#include "fixture.hpp"

using namespace rankfold;
using namespace rankfold::testing;

namespace {

bool contains(const Status& status, const char* text) {
  INFO(status.message());
  return std::string(status.message()).find(text) != std::string::npos;
}

}  // namespace

TEST_CASE("prepare: bad bindings are refused, naming target, value and rule; nothing changes") {
  FakeBackend backend;
  auto pool = AdapterPool::create(backend, model_targets(), small_options(1, 1 << 16)).value();
  auto stream = OwnedStream::create(backend).value();
  static const float kBias[12] = {};
  const struct {
    const char* what;
    std::function<void(std::vector<AdapterBinding>&)> change;
    std::initializer_list<const char*> texts;
  } cases[] = {
      {"target", [](auto& b) { b[0].target = 3; }, {"target of a binding is 3", "0 to 2"}},
      {"slice", [](auto& b) { b[1].slice = 3; }, {"'qkv', slice 3", "0 to 2"}},
      {"expert", [](auto& b) { b[3].expert = 1; }, {"'down'", "expert 1", "0 to 0"}},
      {"twice", [](auto& b) { b[1].slice = 0; }, {"'qkv', slice 0", "two bindings"}},
      {"rank 0", [](auto& b) { b[3].rank = 0; }, {"rank is 0", "at least 1"}},
      {"rank",
       [](auto& b) { b[3].rank = 9; },
       {"'down'", "rank is 9", "max_rank of the pool is 8"}},
      {"scaling",
       [](auto& b) { b[4].scaling = std::numeric_limits<float>::quiet_NaN(); },
       {"'embed'", "scaling is nan"}},
      {"null", [](auto& b) { b[0].a.data = nullptr; }, {"A is null"}},
      {"dtype", [](auto& b) { b[0].b.dtype = DType::i32; }, {"B is i32", "f32, f16 or bf16"}},
      {"device", [](auto& b) { b[0].a.device.type = DeviceType::cuda; }, {"A should be host"}},
      {"A", [](auto& b) { b[3].a.sizes[1] = 15; }, {"A has 2 dimensions [4, 15]", "[4, 16]"}},
      {"B", [](auto& b) { b[3].b.sizes[0] = 11; }, {"B has 2 dimensions [11, 4]", "[12, 4]"}},
      {"vocabulary",
       [](auto& b) { b[4].a.sizes[1] = 21; },
       {"'embed'", "[4, 21]", "[4, 20 or fewer]"}},
      {"bias",
       [](auto& b) { b[3].bias = const_vector(kBias, DType::f32, 11); },
       {"bias has 1 dimensions [11]", "[12]"}},
      {"embedding bias",
       [](auto& b) { b[4].bias = const_vector(kBias, DType::f32, 12); },
       {"'embed'", "should have none"}},
      {"narrowing",
       [](auto& b) { b[3].a.dtype = DType::f32; },
       {"'down'", "A is f32", "bf16", "PoolOptions::a_dtype f32"}},
      {"f16", [](auto& b) { b[3].b.dtype = DType::f16; }, {"'down'", "B is f16", "bf16"}},
      {"empty", [](auto& b) { b.clear(); }, {"no bindings"}},
  };
  for (const auto& c : cases) {
    CAPTURE(c.what);
    SyntheticAdapter adapter({.id = 1});
    c.change(adapter.bindings());
    const auto pending = pool.prepare(adapter.view(), stream);
    CHECK(pending.status().code() == StatusCode::invalid_argument);
    for (const char* const text : c.texts) CHECK(contains(pending.status(), text));
  }
  const SyntheticAdapter adapter({.id = 1});
  CHECK(contains(pool.prepare(adapter.view(), Stream{}).status(), "upload_stream is null"));
  CHECK(pool.stats().arena_in_use == 0);
  CHECK(pool.stats().num_resident == 0);
  CHECK(pool.prepare(adapter.view(), stream).ok());
}

TEST_CASE("prepare: a missing kernel is found at the load, for the targets it touches") {
  FakeBackend backend;
  auto pool = AdapterPool::create(backend, model_targets(), small_options(1, 1 << 16)).value();
  auto stream = OwnedStream::create(backend).value();
  backend.set_supports([](const Problem& problem) -> std::optional<Status> {
    if (problem.op != Op::apply_embedding) return std::nullopt;
    CHECK(problem.x_dtype == DType::i32);
    return Status(StatusCode::unsupported, "apply_embedding: no kernel for it");
  });
  const SyntheticAdapter with({.id = 1, .targets = kAll});
  const auto refused = pool.prepare(with.view(), stream);
  CHECK(refused.status().code() == StatusCode::unsupported);
  CHECK(contains(refused.status(), "target 'embed': apply_embedding: no kernel"));
  const SyntheticAdapter without({.id = 1, .targets = kQkv | kDown});
  CHECK(pool.prepare(without.view(), stream).ok());
}

TEST_CASE("prepare: the kernel is asked for with the pool's dtypes and ranks") {
  FakeBackend backend;
  auto options = small_options(3, 1 << 16);
  options.x_dtype = DType::f16;
  options.y_dtype = DType::f32;
  auto pool = AdapterPool::create(backend, model_targets(), options).value();
  auto stream = OwnedStream::create(backend).value();
  int num_linear = 0;
  backend.set_supports([&](const Problem& problem) -> std::optional<Status> {
    if (problem.op != Op::apply_linear) return std::nullopt;
    ++num_linear;
    CHECK(problem.x_dtype == DType::f16);
    CHECK(problem.y_dtype == DType::f32);
    CHECK(problem.shape.a_dtype == DType::bf16);
    CHECK(problem.shape.max_rank == kMaxRank);
    CHECK(problem.shape.num_slots == 3);
    return std::nullopt;
  });
  const SyntheticAdapter adapter({.id = 1});
  CHECK(pool.prepare(adapter.view(), stream).ok());
  CHECK(num_linear == 4);  // two targets, few rows and many
}

TEST_CASE("prepare: f16 and bf16 widen to a float32 table, and run exactly") {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
    FakeBackend backend;
    auto options = small_options(1, 1 << 16);
    options.a_dtype = options.b_dtype = DType::f32;
    auto pool = AdapterPool::create(backend, model_targets(), options).value();
    auto stream = OwnedStream::create(backend).value();
    const AdapterSpec spec{.id = 3, .dtype = dtype, .bias = true};
    const auto handle = load_ok(pool, spec, stream, stream);
    Step step(backend, pool, {handle.slot});
    REQUIRE(step.enqueue(stream).ok());
    CHECK(step.row_is(0, &spec));
    CHECK(pool.stats().arena_in_use == arena_bytes_of(spec, DType::f32));
  }
}

TEST_CASE("prepare: narrowing where the caller allows it; an overflow is refused") {
  FakeBackend backend;
  auto options = small_options(1, 1 << 16);
  options.narrowing = Narrowing{7};
  const auto no_such = AdapterPool::create(backend, model_targets(), options);
  CHECK(no_such.status().code() == StatusCode::invalid_argument);
  CHECK(contains(no_such.status(), "narrowing is 7; it should be refuse (0) or allow (1)"));
  options.a_dtype = options.b_dtype = DType::f16;
  options.narrowing = Narrowing::allow;
  auto pool = AdapterPool::create(backend, model_targets(), options).value();
  auto stream = OwnedStream::create(backend).value();
  AdapterSpec spec{.id = 3, .targets = kDown, .dtype = DType::f32};
  const auto handle = load_ok(pool, spec, stream, stream);
  Step step(backend, pool, {handle.slot});
  REQUIRE(step.enqueue(stream).ok());
  CHECK(step.row_is(0, &spec));
  SyntheticAdapter large(spec);
  const float too_large = 1e6f;
  std::memcpy(const_cast<void*>(large.bindings()[0].b.data), &too_large, sizeof(float));
  const auto in_use = pool.stats().arena_in_use;
  const auto refused = pool.prepare(large.view(), stream);
  CHECK(refused.status().code() == StatusCode::invalid_argument);
  CHECK(contains(refused.status(), "'down': a weight of B is too large for the table's f16"));
  CHECK(pool.stats().arena_in_use == in_use);
  CHECK(pool.resident(handle));
}

TEST_CASE("prepare: unaligned and strided views are read as they are") {
  FakeBackend backend;
  auto pool = AdapterPool::create(backend, model_targets(), small_options(1, 1 << 16)).value();
  auto stream = OwnedStream::create(backend).value();
  const AdapterSpec spec{.id = 9, .targets = kDown};
  SyntheticAdapter adapter(spec);
  AdapterBinding& binding = adapter.bindings()[0];
  // B [12, 4] column-major, one byte off.
  std::vector<std::byte> memory(1 + 12 * 4 * 2);
  for (int o = 0; o < 12; ++o) {
    for (int j = 0; j < 4; ++j) {
      std::memcpy(memory.data() + 1 + 2 * (12 * j + o),
                  static_cast<const std::byte*>(binding.b.data) + 2 * (4 * o + j), 2);
    }
  }
  binding.b.data = memory.data() + 1;
  binding.b.strides[0] = 1;
  binding.b.strides[1] = 12;
  const Stream step_stream = stream;
  const auto handle = pool.load(adapter.view(), stream, {&step_stream, 1});
  REQUIRE(handle.ok());
  Step step(backend, pool, {handle->slot});
  REQUIRE(step.enqueue(stream).ok());
  CHECK(step.row_is(0, &spec));
}

TEST_CASE("create: bad targets and options are refused by name") {
  FakeBackend backend;
  const auto refusal = [&](auto change) {
    auto targets = model_targets();
    auto options = small_options(2, 1 << 16);
    change(targets, options);
    const auto pool = AdapterPool::create(backend, targets, options);
    CHECK(pool.status().code() == StatusCode::invalid_argument);
    return pool.status();
  };
  CHECK(contains(refusal([](auto&, auto& o) { o.num_slots = 0; }), "num_slots is 0"));
  CHECK(contains(refusal([](auto&, auto& o) { o.max_rank = 0; }), "max_rank is 0"));
  CHECK(contains(refusal([](auto&, auto& o) { o.a_dtype = DType::i32; }), "a_dtype is i32"));
  CHECK(contains(refusal([](auto&, auto& o) { o.arena_bytes = 15; }), "arena_bytes is 15"));
  CHECK(contains(refusal([](auto&, auto& o) { o.staging_bytes = 64; }), "staging_bytes is 64"));
  CHECK(contains(refusal([](auto& t, auto&) { t.clear(); }), "targets is empty"));
  CHECK(contains(refusal([](auto& t, auto&) { t[1].key = ""; }), "key of target 1"));
  CHECK(contains(refusal([](auto& t, auto&) { t[1].key = "qkv"; }), "'qkv' stands twice"));
  CHECK(contains(refusal([](auto& t, auto&) { t[0].num_slices = 17; }), "num_slices"));
  CHECK(contains(refusal([](auto& t, auto&) { t[0].in = 0; }), "in of target 'qkv' is 0"));
  CHECK(contains(refusal([](auto& t, auto&) { t[0].num_experts = 2; }), "num_experts"));
  CHECK(contains(refusal([](auto& t, auto& o) {
                   for (auto& target : t) target.kind = TargetKind::experts;
                   for (auto& target : t) target.num_experts = INT32_MAX;
                   o.num_slots = INT32_MAX;
                 }),
                 "num_slots is 2147483647"));
  CHECK(backend.counters().device_bytes == 0);
}

TEST_CASE("create: more slots than there is memory for are refused with their bytes") {
  FakeBackend backend;
  backend.limit_device_bytes(1 << 20);
  const auto pool =
      AdapterPool::create(backend, model_targets(), small_options(INT32_MAX, 1 << 16));
  CHECK(pool.status().code() == StatusCode::out_of_memory);
  CHECK(contains(pool.status(), "the tables of "));
  CHECK(contains(pool.status(), " bytes"));
  CHECK(backend.counters().device_bytes == 0);
  CHECK(backend.counters().pinned_bytes == 0);
}

TEST_CASE("create: the device's refusal names the bytes, and nothing is left behind") {
  FakeBackend backend;
  for (int skip = 0; skip < 4; ++skip) {
    backend.fail(FakeCall::allocate, skip);
    const auto pool = AdapterPool::create(backend, model_targets(), small_options(2, 1 << 16));
    CHECK(pool.status().code() == StatusCode::out_of_memory);
    if (skip == 0) CHECK(contains(pool.status(), "the arena of 65536 bytes"));
    CHECK(backend.counters().device_bytes == 0);
    CHECK(backend.counters().pinned_bytes == 0);
    CHECK(backend.counters().events == 0);
  }
  CHECK(AdapterPool::create(backend, model_targets(), small_options(2, 1 << 16)).ok());
}

TEST_CASE("table: by index and by key, one array of entries with one stride for all") {
  FakeBackend backend;
  auto pool = AdapterPool::create(backend, model_targets(), small_options(2, 1 << 16)).value();
  const auto qkv = pool.table(0).value();
  const auto embed = pool.table("embed").value();
  CHECK(qkv.slot_stride == 5);
  CHECK(embed.slot_stride == 5);
  CHECK(embed.entries == qkv.entries + 4);
  CHECK(embed.shape.in == kVocabulary);
  CHECK(pool.stats().table_bytes == 2 * 5 * sizeof(AdapterEntry));
  for (int i = 0; i < 10; ++i) CHECK(qkv.entries[i].rank == 0);
  CHECK(contains(pool.table(3).status(), "target is 3; it should be 0 to 2"));
  CHECK(contains(pool.table("none").status(), "key is 'none'"));
}
