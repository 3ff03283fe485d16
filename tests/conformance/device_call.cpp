#include "device_call.hpp"

#include <algorithm>
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

using testing::Grouping;
using testing::GuardedImage;
using testing::host_vector;
using testing::HostAddressing;
using testing::HostCall;
using testing::HostEntry;
using testing::HostTensor;
using testing::make_image;
using testing::make_raw_image;

namespace {

template <class T>
HostTensor as_tensor(const std::vector<T>& values) {
  return host_vector<T>(std::span<const T>(values));
}

}  // namespace

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

void* DeviceCall::address(Index piece) const noexcept {
  // As numbers: before prepare() there is no buffer yet, and only the problem is asked for.
  return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(buffer_.data()) +
                                 pieces_[piece].begin + pieces_[piece].image.offset);
}

void DeviceCall::plan() {
  if (!pieces_.empty()) return;
  const std::int64_t shift = call_.misalignment;
  const auto add_writable = [&](GuardedImage image) {
    image.writable = true;
    return add(std::move(image));
  };
  if (call_.x.given()) x_ = add(make_image("x", call_.x, call_.x_row_stride, shift));
  if (call_.ids.given()) ids_ = add(make_image("ids", call_.ids, -1, shift));
  if (call_.h.given()) {
    GuardedImage image = make_image("h", call_.h, call_.h_row_stride, shift);
    image.writable = testing::makes_h(call_.op);
    h_ = add(std::move(image));
  }
  if (call_.y.given()) y_ = add_writable(make_image("y", call_.y, call_.y_row_stride, shift));

  const HostAddressing& addressing = call_.addressing;
  const bool by_backend =
      addressing.mode == AddressingMode::grouped && addressing.grouping == Grouping::by_backend;
  if (addressing.mode == AddressingMode::tokens || by_backend) {
    token_slots_ = add(make_image("token_slots", as_tensor(addressing.token_slots)));
  }
  if (by_backend || call_.op == Op::group_tokens) {
    grouping_ = add(make_raw_image("grouping memory",
                                   grouping_bytes(addressing.num_tokens, call_.shape.num_slots)));
  } else if (addressing.mode == AddressingMode::grouped) {
    token_order_ = add(make_image("token_order", as_tensor(addressing.token_order)));
    segment_offsets_ = add(make_image("segment_offsets", as_tensor(addressing.segment_offsets)));
    segment_slots_ = add(make_image("segment_slots", as_tensor(addressing.segment_slots)));
    num_segments_ = add(
        make_image("num_segments", as_tensor(std::vector<std::int32_t>{addressing.num_segments})));
  }
  if (!addressing.token_weights.empty()) {
    token_weights_ = add(make_image("token_weights", as_tensor(addressing.token_weights)));
  }
  plan_entries();
}

void DeviceCall::plan_entries() {
  const auto pad = [](const HostTensor& tensor, std::int64_t padding) {
    return padding > 0 ? tensor.columns() + padding : -1;
  };
  a_.assign(call_.entries.size(), kNone);
  b_.assign(call_.entries.size(), kNone);
  bias_.assign(call_.entries.size(), kNone);
  for (std::size_t e = 0; e < call_.entries.size(); ++e) {
    const HostEntry& entry = call_.entries[e];
    const std::string at = "[entry " + std::to_string(e) + "]";
    if (entry.a.given()) a_[e] = add(make_image("a" + at, entry.a, pad(entry.a, call_.a_padding)));
    if (entry.b.given()) b_[e] = add(make_image("b" + at, entry.b, pad(entry.b, call_.b_padding)));
    if (entry.bias.given()) bias_[e] = add(make_image("bias" + at, entry.bias));
  }
  for (std::size_t e = 0; e < call_.entries.size(); ++e) {
    const std::int64_t shared = call_.entries[e].shared_a;
    if (shared >= 0) a_[e] = a_[static_cast<std::size_t>(shared)];
  }
  if (call_.entries.empty()) return;
  const std::int64_t stride =
      std::int64_t{call_.shape.num_experts} * call_.shape.num_slices + call_.slot_padding;
  const auto bytes =
      static_cast<std::size_t>(call_.shape.num_slots * stride) * sizeof(AdapterEntry);
  GuardedImage image = make_raw_image("adapter entries", bytes);
  image.writable = false;
  table_ = add(std::move(image));
}

AdapterTableView DeviceCall::table() const {
  AdapterTableView view;
  view.shape = call_.shape;
  view.entries = pointer<const AdapterEntry>(table_);
  view.slot_stride =
      std::int64_t{call_.shape.num_experts} * call_.shape.num_slices + call_.slot_padding;
  view.device = backend_.device();
  return view;
}

void DeviceCall::write_entries() {
  if (table_ == kNone) return;
  const AdapterTableView view = table();
  GuardedImage& image = pieces_[table_].image;
  for (std::int64_t slot = 0; slot < call_.shape.num_slots; ++slot) {
    for (std::int64_t expert = 0; expert < call_.shape.num_experts; ++expert) {
      for (std::int64_t slice = 0; slice < call_.shape.num_slices; ++slice) {
        const auto e =
            static_cast<std::size_t>(testing::entry_index(call_.shape, slot, expert, slice));
        const HostEntry& source = call_.entries[e];
        AdapterEntry entry;
        entry.rank = source.rank;
        entry.scaling = source.scaling;
        entry.a = pointer<const void>(a_[e]);
        entry.b = pointer<const void>(b_[e]);
        entry.bias = pointer<const float>(bias_[e]);
        const HostTensor& a = a_of(call_, source);
        entry.in_limit = a.given() ? a.columns() : call_.shape.in;
        entry.a_row_stride = entry.in_limit + call_.a_padding;
        entry.b_row_stride = source.rank + call_.b_padding;
        const auto at = static_cast<std::size_t>(entry_index(view, slot, expert, slice));
        std::memcpy(image.bytes.data() + image.offset + at * sizeof entry, &entry, sizeof entry);
      }
    }
  }
}

LoraAddressing DeviceCall::addressing() const {
  const HostAddressing& source = call_.addressing;
  LoraAddressing addressing;
  addressing.mode = source.mode;
  addressing.num_tokens = source.num_tokens;
  addressing.device = backend_.device();
  if (source.mode == AddressingMode::uniform) addressing.uniform_slot = source.uniform_slot;
  addressing.token_slots = pointer<const std::int32_t>(token_slots_);
  if (source.mode == AddressingMode::grouped && source.grouping == Grouping::by_backend) {
    addressing = grouped_;
    addressing.device = backend_.device();
  } else if (source.mode == AddressingMode::grouped) {
    addressing.token_order = pointer<const std::int32_t>(token_order_);
    addressing.segment_offsets = pointer<const std::int32_t>(segment_offsets_);
    addressing.segment_slots = pointer<const std::int32_t>(segment_slots_);
    addressing.num_segments = pointer<const std::int32_t>(num_segments_);
    addressing.max_segments = static_cast<std::int64_t>(source.segment_slots.size());
  }
  addressing.active_rows_bound = source.active_rows_bound;
  addressing.token_weights = pointer<const float>(token_weights_);
  return addressing;
}

CallArguments DeviceCall::arguments(Stream stream) const {
  const Device device = backend_.device();
  const std::int64_t tokens = call_.addressing.num_tokens;
  // As many rows as the tensor has, so that a call whose addressing says otherwise is refused.
  const auto input = [&](Index piece, const HostTensor& tensor, std::int64_t stride) {
    return const_matrix(pointer<const void>(piece), tensor.dtype,
                        stride == 0 ? tokens : tensor.rows(), tensor.columns(), device, stride);
  };
  const auto output = [&](Index piece, const HostTensor& tensor, std::int64_t stride) {
    return matrix(pointer<void>(piece), tensor.dtype, tensor.rows(), tensor.columns(), device,
                  stride);
  };
  CallArguments result;
  result.stream = stream;
  if (workspace_ != kNone) {
    result.workspace = {address(workspace_), pieces_[workspace_].image.row_bytes, device};
  }
  const ConstTensorView x =
      x_ == kNone ? ConstTensorView{} : input(x_, call_.x, call_.x_row_stride);
  const ConstTensorView ids =
      ids_ == kNone
          ? ConstTensorView{}
          : const_vector(pointer<const void>(ids_), call_.ids.dtype, call_.ids.rows(), device);
  const TensorView h = h_ == kNone ? TensorView{} : output(h_, call_.h, call_.h_row_stride);
  const TensorView y = y_ == kNone ? TensorView{} : output(y_, call_.y, call_.y_row_stride);
  switch (call_.op) {
    case Op::group_tokens:
      result.args = GroupTokensArgs{tokens,
                                    call_.shape.num_slots,
                                    pointer<const std::int32_t>(token_slots_),
                                    pointer<void>(grouping_),
                                    pieces_[grouping_].image.row_bytes,
                                    device};
      break;
    case Op::shrink:
      result.args = ShrinkArgs{x, table(), addressing(), h, call_.options};
      break;
    case Op::expand:
      result.args = ExpandArgs{h, table(), addressing(), y, call_.options};
      break;
    case Op::gather_shrink:
      result.args = GatherShrinkArgs{ids, table(), addressing(), h, call_.options};
      break;
    case Op::apply_embedding:
      result.args = ApplyEmbeddingArgs{ids, table(), addressing(), y, call_.options};
      break;
    default:
      result.args = ApplyLinearArgs{x, table(), addressing(), y, call_.options};
      break;
  }
  return result;
}

Status DeviceCall::transfer(Stream stream, CopyKind kind, std::vector<std::byte>& host) {
  last_stream_ = stream;
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
  auto buffer = Buffer::create(backend_, used_);
  if (!buffer.ok()) return buffer.status();
  buffer_ = std::move(*buffer);
  write_entries();
  return reset(stream);
}

Problem DeviceCall::problem() {
  plan();
  Problem problem = problem_of(arguments({}));
  if (call_.addressing.mode == AddressingMode::grouped &&
      call_.addressing.grouping == Grouping::by_backend) {
    // As group_tokens will say.
    problem.addressing = AddressingMode::grouped;
    problem.bounds.rows = problem.bounds.tokens = call_.addressing.num_tokens;
    problem.bounds.segments =
        std::min<std::int64_t>(call_.addressing.num_tokens, call_.shape.num_slots);
    const std::int64_t bound = call_.addressing.active_rows_bound;
    problem.bounds.active_rows =
        bound < 0 ? problem.bounds.rows : std::min(bound, problem.bounds.rows);
  }
  return problem;
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
  // host_ is still being read by what was enqueued before.
  if (Status status = backend_.synchronize(stream); !status.ok()) return status;
  call_.addressing = addressing;
  refresh(token_slots_, as_tensor(addressing.token_slots));
  refresh(token_order_, as_tensor(addressing.token_order));
  refresh(segment_offsets_, as_tensor(addressing.segment_offsets));
  refresh(segment_slots_, as_tensor(addressing.segment_slots));
  refresh(num_segments_, as_tensor(std::vector<std::int32_t>{addressing.num_segments}));
  refresh(token_weights_, as_tensor(addressing.token_weights));
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
    return piece == kNone ? HostTensor{}
                          : extract(pieces_[piece].image, bytes_of(pieces_[piece]), like);
  };
  outcome.y = take(y_, call_.y);
  outcome.h = take(h_, call_.h);
  if (call_.op == Op::group_tokens && grouped_.token_order != nullptr) {
    const auto read = [&](const std::int32_t* from, std::int64_t count) {
      HostTensor tensor(DType::i32, {count});
      const auto offset = static_cast<std::size_t>(reinterpret_cast<const std::byte*>(from) -
                                                   buffer_.as<std::byte>());
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
