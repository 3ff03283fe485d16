#include "rankfold/status.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>

using namespace rankfold;

namespace {
std::atomic<long> num_allocations{0};
}

// noinline: the compiler pairs an inlined free() with the operator new of others.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++num_allocations;
  if (void* const pointer = std::malloc(bytes == 0 ? 1 : bytes)) return pointer;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* pointer) noexcept { std::free(pointer); }
[[gnu::noinline]] void operator delete(void* pointer, std::size_t) noexcept { std::free(pointer); }

TEST_CASE("the counter of allocations counts") {
  const long before = num_allocations;
  const std::string long_text(200, 'x');
  CHECK(num_allocations > before);
}

TEST_CASE("making, copying, assigning and formatting a Status allocates nothing") {
  const std::string text(3000, 'x');
  const long before = num_allocations;
  Status status(StatusCode::no_room, text);
  const Status copy = status;
  Status assigned;
  assigned = copy;
  const Status formatted = Status::format(StatusCode::internal, "%s and %d", text.c_str(), 7);
  Result<int> result = assigned;
  const Result<int> copied = result;
  const long after = num_allocations;
  CHECK(before == after);
  CHECK(copied.status().code() == StatusCode::no_room);
  CHECK(formatted.code() == StatusCode::internal);
}

TEST_CASE("ok has no text") {
  CHECK(Status().ok());
  CHECK(std::strcmp(Status().message(), "") == 0);
  CHECK(std::strcmp(Status(StatusCode::ok, "ignored").message(), "") == 0);
}

TEST_CASE("a text is kept up to the limit and cut past it") {
  const std::size_t limit = Status::kTextBytes - 1;
  const Status whole(StatusCode::internal, std::string(limit, 'a'));
  CHECK(whole.message() == std::string(limit, 'a'));
  const Status cut(StatusCode::internal, std::string(limit + 1, 'a'));
  CHECK(cut.message() == std::string(limit - 3, 'a') + "...");
  const std::string text(limit + 500, 'a');
  const Status formatted = Status::format(StatusCode::internal, "%s", text.c_str());
  CHECK(formatted.message() == std::string(limit - 3, 'a') + "...");
  const std::string exact(limit, 'b');
  CHECK(Status::format(StatusCode::internal, "%s", exact.c_str()).message() == exact);
}

TEST_CASE("a cut never splits a character of two, three or four bytes") {
  for (const std::string& character :
       {std::string("\xc3\xa9"), std::string("\xe2\x82\xac"), std::string("\xf0\x9f\x98\x80")}) {
    for (std::size_t shift = 0; shift < 4; ++shift) {
      std::string text(shift, 'a');
      while (text.size() < 2 * Status::kTextBytes) text += character;
      for (const bool formatted : {false, true}) {
        const Status status = formatted ? Status::format(StatusCode::internal, "%s", text.c_str())
                                        : Status(StatusCode::internal, text);
        std::string got = status.message();
        REQUIRE(got.size() < Status::kTextBytes);
        REQUIRE(got.size() > Status::kTextBytes - 9);
        REQUIRE(got.substr(got.size() - 3) == "...");
        got.resize(got.size() - 3);
        CHECK((got.size() - shift) % character.size() == 0);
        CHECK(text.compare(0, got.size(), got) == 0);
      }
    }
  }
}

TEST_CASE("Result carries a value or a reason") {
  Result<int> value = 7;
  CHECK(value.ok());
  CHECK(value.value() == 7);
  Result<int> none = Status(StatusCode::no_room, "full");
  CHECK(!none.ok());
  CHECK(none.status().code() == StatusCode::no_room);
  try {
    (void)none.value();
    FAIL("value() of nothing did not throw");
  } catch (const Error& error) {
    CHECK(std::string(error.what()) == "full");
    CHECK(error.status().code() == StatusCode::no_room);
  }
  CHECK(Result<int>(Status()).status().code() == StatusCode::internal);
  Result<std::unique_ptr<int>> moved = std::make_unique<int>(3);
  CHECK(*std::move(moved).value() == 3);
}
