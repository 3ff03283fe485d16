// The debug calls name the first bad element of device arrays.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "fake_backend.hpp"
#include "rankfold/memory.hpp"
#include "rankfold/operations.hpp"

using namespace rankfold;
using testing::FakeBackend;

namespace {

using Ints = std::vector<std::int32_t>;
using Floats = std::vector<float>;

struct World {
  FakeBackend backend;
  OwnedStream stream = OwnedStream::create(backend, StreamMode::worker).value();

  std::string check(const LoraAddressing& addressing, std::int32_t num_slots = 3) {
    return check_addressing(backend, addressing, num_slots, stream).message();
  }
  std::string check(const ExpertAddressing& addressing) {
    return check_addressing(backend, addressing, 3, 2, stream).message();
  }
};

void contains(const std::string& text, const char* piece) {
  CAPTURE(text);
  CHECK(text.find(piece) != std::string::npos);
}

}  // namespace

TEST_CASE("check_addressing: tokens and uniform") {
  World world;
  Ints slots = {0, -1, 2, 1};
  Floats weights = {1, 0.5f, 0, -1};
  LoraAddressing addressing;
  addressing.num_tokens = 4;
  addressing.token_slots = slots.data();
  addressing.token_weights = weights.data();
  CHECK(world.check(addressing) == "");
  slots[2] = 3;
  contains(world.check(addressing),
           "check_addressing: addressing.token_slots[2] is 3; it should be -1 or 0 to 2");
  slots[2] = -2;
  contains(world.check(addressing), "addressing.token_slots[2] is -2");
  slots[2] = 2;
  weights[3] = NAN;
  contains(world.check(addressing), "addressing.token_weights[3] is nan; it should be finite");
  weights[3] = 1;
  addressing.token_slots = nullptr;
  contains(world.check(addressing), "addressing.token_slots is null");
  addressing.mode = AddressingMode::uniform;
  addressing.uniform_slot = 3;
  contains(world.check(addressing), "addressing.uniform_slot is 3; it should be -1 or 0 to 2");
  addressing.uniform_slot = -1;
  CHECK(world.check(addressing) == "");
  contains(world.check(addressing, -1), "num_slots is -1");
  CHECK(check_addressing(world.backend, addressing, 3, Stream{}).code() ==
        StatusCode::invalid_argument);
  CHECK(check_addressing(world.backend, LoraAddressing{}, 3, world.stream).ok());
}

TEST_CASE("check_addressing: a host's grouped form") {
  World world;
  Ints order = {3, 0, 2, 99};
  Ints offsets = {0, 0, 2, 3, 77};
  Ints slots = {2, 0, 0, 99};
  Ints count = {3};
  LoraAddressing addressing;
  addressing.mode = AddressingMode::grouped;
  addressing.num_tokens = 4;
  addressing.max_segments = 4;
  addressing.token_order = order.data();
  addressing.segment_offsets = offsets.data();
  addressing.segment_slots = slots.data();
  addressing.num_segments = count.data();
  CHECK(world.check(addressing) == "");  // empty segments, repeated slots, nothing past the end
  count[0] = 5;
  contains(world.check(addressing), "num_segments[0] is 5; it should be 0 to 4 (max_segments)");
  count[0] = -1;
  contains(world.check(addressing), "num_segments[0] is -1");
  count[0] = 3;
  offsets[1] = 3;
  contains(world.check(addressing), "segment_offsets[2] is 2; it should be 3 to 4");
  offsets[1] = 0;
  offsets[3] = 5;
  contains(world.check(addressing), "segment_offsets[3] is 5; it should be 2 to 4");
  offsets[3] = 3;
  offsets[0] = -1;
  contains(world.check(addressing), "segment_offsets[0] is -1; it should be 0 to 4");
  offsets[0] = 0;
  slots[1] = 3;
  contains(world.check(addressing), "segment_slots[1] is 3; it should be -1 or 0 to 2");
  slots[1] = 0;
  order[1] = 4;
  contains(world.check(addressing), "token_order[1] is 4; it should be 0 to 3");
  order[1] = 3;
  contains(world.check(addressing), "token_order[1] is 3, as token_order[0] is");
  order[1] = 0;
  CHECK(world.check(addressing) == "");
}

TEST_CASE("check_addressing: experts, grouped and gathered") {
  World world;
  Ints offsets = {0, 1, 3};
  Ints tokens = {0, 1, 1, 99};
  Ints slots = {2, -1};
  Floats row_weights = {1, 1, 1, NAN};  // the row past the last offset is not read
  ExpertAddressing addressing;
  addressing.num_tokens = 2;
  addressing.num_rows = 4;
  addressing.expert_offsets = offsets.data();
  addressing.row_tokens = tokens.data();
  addressing.token_slots = slots.data();
  addressing.row_weights = row_weights.data();
  CHECK(world.check(addressing) == "");
  offsets[1] = 4;
  contains(world.check(addressing), "expert_offsets[2] is 3; it should be 4 to 4");
  offsets = {0, 1, 5};
  contains(world.check(addressing), "expert_offsets[2] is 5; it should be 1 to 4");
  offsets = {0, 1, 3};
  tokens[2] = 2;
  contains(world.check(addressing), "row_tokens[2] is 2; it should be 0 to 1");
  tokens[2] = 1;
  slots[0] = 3;
  contains(world.check(addressing), "token_slots[0] is 3");
  slots[0] = 0;
  row_weights[2] = INFINITY;
  contains(world.check(addressing), "row_weights[2] is inf; it should be finite");

  Ints ids = {5, -1, 0, 7};
  ExpertAddressing gather;
  gather.mode = ExpertMode::gather;
  gather.num_tokens = 2;
  gather.num_rows = 4;
  gather.top_k = 2;
  gather.expert_ids = ids.data();
  CHECK(world.check(gather) == "");  // experts of other shards are ordinary
  ids[3] = -2;
  contains(world.check(gather), "expert_ids[3] is -2; it should be -1 or an expert");
  ids[3] = 0;
  Floats token_weights = {1, NAN};
  gather.token_weights = token_weights.data();
  contains(world.check(gather), "token_weights[1] is nan");
  CHECK(check_addressing(world.backend, gather, 3, 0, world.stream).code() ==
        StatusCode::invalid_argument);
}

TEST_CASE("E2: check_ids names the first id outside the vocabulary") {
  World world;
  const Device device = world.backend.device();
  const auto check = [&](const ConstTensorView& ids, std::int64_t in) {
    return std::string(check_ids(world.backend, ids, in, world.stream).message());
  };
  const Ints narrow = {0, 99, 100, 103};
  CHECK(check(const_vector(narrow.data(), 4, device), 104) == "");
  contains(check(const_vector(narrow.data(), 4, device), 100),
           "check_ids: ids[2] is 100; it should be 0 to 99");
  const std::vector<std::int64_t> wide = {0, std::int64_t{1} << 40, -1};
  contains(check(const_vector(wide.data(), 3, device), 100), "ids[1] is 1099511627776; it should");
  contains(check(const_vector(wide.data() + 2, 1, device), 100), "ids[0] is -1; it should");
  contains(check(const_vector(wide.data(), 3, device), 0), "in is 0; it should be 1 or more");
  CHECK(check(const_vector(wide.data(), 0, device), 100) == "");
  contains(check(ConstTensorView{}, 100), "ids is not given");
}

TEST_CASE("the first error of the device is returned") {
  World world;
  Ints slots = {0, 99};
  LoraAddressing addressing;
  addressing.num_tokens = 2;
  addressing.token_slots = slots.data();
  world.backend.fail(testing::FakeCall::copy, 0);
  CHECK(check_addressing(world.backend, addressing, 3, world.stream).code() ==
        StatusCode::device_error);
}
