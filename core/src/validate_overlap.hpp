// Which bytes a call reads and writes, and whether they collide.
#pragma once

#include <array>
#include <cstdint>

#include "rankfold/arguments.hpp"
#include "validate_check.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

/// The bytes of one argument. Rows of `width` bytes stand every `stride` bytes; stride 0: one run.
struct ByteRange {
  const char* name = nullptr;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t stride = 0;
  std::uint64_t width = 0;

  bool overlaps(const ByteRange& other) const noexcept;
};

/// The arguments of one call; those written first. Only after the tensors were checked.
class ByteRanges {
 public:
  template <class Args>
  explicit ByteRanges(const Args& args) noexcept {
    if constexpr (requires { args.y; }) add("y", args.y);
    if constexpr (requires { args.dx; }) add("dx", args.dx);
    // forward and shrink write h, expand and backward read it: the type of the view says which.
    if constexpr (requires(const Args& a) { writable(a.h); }) add("h", args.h);
    if constexpr (requires { args.ds; }) add("ds", args.ds);
    num_written_ = count_;
    if constexpr (requires { args.x; }) add("x", args.x);
    if constexpr (requires { args.ids; }) add("ids", args.ids);
    if constexpr (requires { args.dy; }) add("dy", args.dy);
    if constexpr (requires(const Args& a) { read_only(a.h); }) add("h", args.h);
    if constexpr (requires { args.grads; }) add(args.grads, args.table.shape);
    add(args.table);
    add(args.addressing, args.table.shape);
  }

  /// No written range overlaps another one.
  bool check_outputs(Check& check) const noexcept;
  /// The workspace overlaps none.
  bool check_workspace(Check& check, const Workspace& workspace) const noexcept;

 private:
  static void writable(const TensorView&) noexcept {}
  template <class View>
  requires std::is_same_v<View, ConstTensorView>
  static void read_only(const View&) noexcept {}

  void add(const char* name, const ConstTensorView& view) noexcept;
  void add(const char* name, const void* data, std::int64_t count,
           std::int64_t element_bytes) noexcept;
  void add(const AdapterTableView& table) noexcept;
  void add(const Gradients& grads, const TableShape& shape) noexcept;
  void add(const LoraAddressing& addressing, const TableShape& shape) noexcept;
  void add(const ExpertAddressing& addressing, const TableShape& shape) noexcept;

  std::array<ByteRange, 20> ranges_;
  int count_ = 0;
  int num_written_ = 0;
};

}  // namespace detail
RANKFOLD_NAMESPACE_END
