#include "device_call.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>

#if defined(__SANITIZE_ADDRESS__)
#define RANKFOLD_CONFORMANCE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define RANKFOLD_CONFORMANCE_ASAN 1
#endif
#endif
#ifdef RANKFOLD_CONFORMANCE_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace rankfold::conformance {

namespace {

// RANKFOLD_TEST_SEPARATE=1: every tensor in an allocation of its own that ends with its last
// element, so that a checker of memory accesses sees what reads past it.
bool separate_allocations() {
  static const bool separate = [] {
    const char* const value = std::getenv("RANKFOLD_TEST_SEPARATE");
    return value != nullptr && std::strcmp(value, "1") == 0;
  }();
  return separate;
}

}  // namespace

using testing::Grouping;
using testing::GuardedImage;
using testing::host_vector;
using testing::HostAddressing;
using testing::HostCall;
using testing::HostExperts;
using testing::HostTensor;
using testing::make_raw_image;

DeviceCall::DeviceCall(LoraBackend& backend, const HostCall& call)
    : backend_(backend), call_(call) {}

DeviceCall::~DeviceCall() {
  if (last_stream_.handle != nullptr) (void)backend_.synchronize(last_stream_);
  poison_guards(false);
}

DeviceCall::Index DeviceCall::add(GuardedImage image) {
  Piece piece{std::move(image), used_};
  used_ += piece.image.bytes.size();
  pieces_.push_back(std::move(piece));
  return pieces_.size() - 1;
}

DeviceCall::Index DeviceCall::add_writable(GuardedImage image) {
  image.writable = true;
  return add(std::move(image));
}

void* DeviceCall::address(Index piece) const noexcept {
  // As numbers: before prepare() there is no buffer yet, and only the problem is asked for.
  const Piece& found = pieces_[piece];
  const std::uintptr_t begin = found.own.data() != nullptr
                                   ? reinterpret_cast<std::uintptr_t>(found.own.data())
                                   : reinterpret_cast<std::uintptr_t>(buffer_.data()) + found.begin;
  return reinterpret_cast<void*>(begin + found.image.offset);
}

Status DeviceCall::allocate() {
  if (!separate_allocations()) {
    auto buffer = Buffer::create(backend_, used_);
    if (buffer.ok()) buffer_ = std::move(*buffer);
    return buffer.status();
  }
  for (Piece& piece : pieces_) {
    auto own = Buffer::create(backend_, piece.own_bytes());
    if (!own.ok()) return own.status();
    piece.own = std::move(*own);
  }
  return {};
}

Status DeviceCall::transfer(Stream stream, CopyKind kind, std::vector<std::byte>& host) {
  last_stream_ = stream;
  if (separate_allocations()) {
    for (const Piece& piece : pieces_) {
      std::byte* const there = piece.own.as<std::byte>();
      std::byte* const here = host.data() + piece.begin;
      const Status status = kind == CopyKind::host_to_device
                                ? backend_.copy(there, here, piece.own_bytes(), kind, stream)
                                : backend_.copy(here, there, piece.own_bytes(), kind, stream);
      if (!status.ok()) return status;
    }
    return {};
  }
  return kind == CopyKind::host_to_device
             ? backend_.copy(buffer_.data(), host.data(), host.size(), kind, stream)
             : backend_.copy(host.data(), buffer_.data(), host.size(), kind, stream);
}

Status DeviceCall::prepare(Stream stream, const std::vector<Strategy>& strategies) {
  plan();
  Status status;
  std::uint64_t need = 0;
  if (call_.op != Op::group_tokens) need = workspace_need(strategies, status);
  if (!status.ok()) return status;
  workspace_ =
      add(make_raw_image("workspace", static_cast<std::size_t>(static_cast<std::int64_t>(need) +
                                                               call_.workspace_extra)));
  if (Status allocated = allocate(); !allocated.ok()) return allocated;
  write_entries();
  write_gradients();
  return reset(stream);
}

std::uint64_t DeviceCall::workspace_need(const std::vector<Strategy>& strategies, Status& status) {
  if (call_.expect_status.has_value()) return 0;
  Problem problem = this->problem();
  std::uint64_t need = 0;
  const auto own = workspace_bytes(backend_, problem);
  if (own.ok()) need = *own;
  if (!own.ok() && own.status().code() != StatusCode::unsupported) status = own.status();
  for (const Strategy strategy : strategies) {
    problem.options.strategy = strategy;
    const auto bytes = workspace_bytes(backend_, problem);
    if (bytes.ok()) need = std::max(need, *bytes);
  }
  return need;
}

Status DeviceCall::reset(Stream stream) {
  poison_guards(false);
  host_.resize(used_);
  for (const Piece& piece : pieces_) {
    std::memcpy(host_.data() + piece.begin, piece.image.bytes.data(), piece.image.bytes.size());
  }
  Status status = transfer(stream, CopyKind::host_to_device, host_);
#ifdef RANKFOLD_CONFORMANCE_ASAN
  if (status.ok()) status = backend_.synchronize(stream);
  poison_guards(true);
#endif
  return status;
}

void DeviceCall::refresh(Index piece, const HostTensor& tensor) {
  if (piece == kNone) return;
  GuardedImage& image = pieces_[piece].image;
  std::memcpy(image.bytes.data() + image.offset, tensor.bytes.data(), tensor.bytes.size());
}

Status DeviceCall::update(const HostAddressing& addressing, Stream stream) {
  return update(addressing, call_.experts, stream);
}

Status DeviceCall::update(const HostAddressing& addressing, const HostExperts& experts,
                          Stream stream) {
  // host_ is still being read by what was enqueued before.
  if (Status status = backend_.synchronize(stream); !status.ok()) return status;
  call_.addressing = addressing;
  call_.experts = experts;
  refresh(expert_offsets_, host_vector(experts.expert_offsets));
  refresh(row_tokens_, host_vector(experts.row_tokens));
  refresh(expert_ids_, host_vector(experts.expert_ids));
  refresh(row_weights_, host_vector(experts.row_weights));
  refresh(token_slots_, host_vector(addressing.token_slots));
  refresh(token_order_, host_vector(addressing.token_order));
  refresh(segment_offsets_, host_vector(addressing.segment_offsets));
  refresh(segment_slots_, host_vector(addressing.segment_slots));
  refresh(num_segments_, host_vector(std::vector<std::int32_t>{addressing.num_segments}));
  refresh(token_weights_, host_vector(addressing.token_weights));
  return reset(stream);
}

Status DeviceCall::run(Stream stream, const CallOptions& options) {
  last_stream_ = stream;
  if (call_.op == Op::group_tokens) {
    const CallArguments own = arguments(stream);
    return launch(backend_, own, &grouped_);
  }
  if (call_.addressing.mode == AddressingMode::grouped &&
      call_.addressing.grouping == Grouping::by_backend) {
    CallArguments grouping;
    grouping.stream = stream;
    grouping.args = GroupTokensArgs{call_.addressing.num_tokens,
                                    call_.shape.num_slots,
                                    pointer<const std::int32_t>(token_slots_),
                                    address(grouping_),
                                    pieces_[grouping_].image.row_bytes,
                                    backend_.device()};
    if (Status status = launch(backend_, grouping, &grouped_); !status.ok()) return status;
  }
  call_.options = options;
  return launch(backend_, arguments(stream));
}

CallOutcome DeviceCall::collect(Stream stream) {
  CallOutcome outcome;
  std::vector<std::byte> after(used_);
  outcome.status = backend_.synchronize(stream);
  if (!outcome.status.ok()) return outcome;
  poison_guards(false);
  // Guards that stand on the host alone.
  for (const Piece& piece : pieces_) {
    std::memcpy(after.data() + piece.begin, piece.image.bytes.data(), piece.image.bytes.size());
  }
  outcome.status = transfer(stream, CopyKind::device_to_host, after);
  if (outcome.status.ok()) outcome.status = backend_.synchronize(stream);
  if (!outcome.status.ok()) return outcome;
  poison_guards(true);
  const auto bytes_of = [&](const Piece& piece) {
    return std::span<const std::byte>(after).subspan(piece.begin, piece.image.bytes.size());
  };
  for (const Piece& piece : pieces_) {
    outcome.damage = testing::find_damage(piece.image, bytes_of(piece));
    if (!outcome.damage.empty()) break;
  }
  const auto take = [&](Index piece, const HostTensor& like) {
    return piece == kNone || !like.given()  // a gradient that another entry holds
               ? HostTensor{}
               : extract(pieces_[piece].image, bytes_of(pieces_[piece]), like);
  };
  outcome.y = take(y_, call_.y);
  outcome.h = take(h_, call_.h);
  outcome.dx = take(dx_, call_.dx);
  outcome.ds = take(ds_, call_.ds);
  for (std::size_t e = 0; e < call_.gradients.size(); ++e) {
    outcome.da.push_back(take(da_[e], call_.gradients[e].da));
    outcome.db.push_back(take(db_[e], call_.gradients[e].db));
    outcome.dbias.push_back(take(dbias_[e], call_.gradients[e].dbias));
  }
  if (call_.op == Op::group_tokens && grouped_.token_order != nullptr) {
    const auto read = [&](const std::int32_t* from, std::int64_t count) {
      HostTensor tensor(DType::i32, {count});
      const Piece& memory = pieces_[grouping_];
      const auto offset =
          memory.begin + memory.image.offset +
          static_cast<std::size_t>(reinterpret_cast<const std::byte*>(from) -
                                   static_cast<const std::byte*>(address(grouping_)));
      std::memcpy(tensor.bytes.data(), after.data() + offset, tensor.bytes.size());
      return tensor;
    };
    outcome.token_order = read(grouped_.token_order, call_.addressing.num_tokens);
    outcome.segment_offsets = read(grouped_.segment_offsets, grouped_.max_segments + 1);
    outcome.segment_slots = read(grouped_.segment_slots, grouped_.max_segments);
    outcome.num_segments = read(grouped_.num_segments, 1);
  }
  return outcome;
}

void DeviceCall::poison_guards([[maybe_unused]] bool poison) const noexcept {
#ifdef RANKFOLD_CONFORMANCE_ASAN
  if (buffer_.data() == nullptr || backend_.device().type != DeviceType::cpu) return;
  if (!poison) {
    ASAN_UNPOISON_MEMORY_REGION(buffer_.data(), used_);
    return;
  }
  for (const Piece& piece : pieces_) {
    const std::byte* const begin = buffer_.as<std::byte>() + piece.begin;
    const std::size_t end = piece.image.offset + piece.image.payload_bytes();
    ASAN_POISON_MEMORY_REGION(begin, piece.image.offset);
    ASAN_POISON_MEMORY_REGION(begin + end, piece.image.bytes.size() - end);
  }
#endif
}

CallOutcome run_call(LoraBackend& backend, const HostCall& call, Stream stream) {
  DeviceCall device(backend, call);
  Status status = device.prepare(stream);
  if (status.ok()) status = device.run(stream, call.options);
  CallOutcome outcome = device.collect(stream);
  if (!status.ok()) outcome.status = status;
  return outcome;
}

}  // namespace rankfold::conformance
