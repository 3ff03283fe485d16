// One call of an operation with all its data on the host: what the oracle computes, what a backend
// is given, and what a case file holds.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "host_tensor.hpp"
#include "rankfold/adapter_table.hpp"
#include "rankfold/addressing.hpp"
#include "rankfold/arguments.hpp"
#include "rankfold/options.hpp"
#include "rankfold/status.hpp"

namespace rankfold::testing {

/// One (slot, expert, slice). Tensors that are not given mean rank 0.
struct HostEntry {
  std::int32_t rank = 0;
  float scaling = 0;
  HostTensor a;     ///< [rank, in or in_limit]
  HostTensor b;     ///< [out, rank]
  HostTensor bias;  ///< [out] f32
  /// Index of the entry whose A this one uses, at the same address; -1: its own.
  std::int64_t shared_a = -1;
};

enum class Grouping { by_host, by_backend };

struct HostAddressing {
  AddressingMode mode = AddressingMode::tokens;
  /// grouped: the arrays below, or those that group_tokens makes of token_slots.
  Grouping grouping = Grouping::by_host;
  std::int32_t uniform_slot = -1;
  std::int64_t num_tokens = 0;
  std::vector<std::int32_t> token_slots;
  std::vector<std::int32_t> token_order;
  std::vector<std::int32_t> segment_offsets;  ///< [max_segments + 1]
  std::vector<std::int32_t> segment_slots;    ///< [max_segments]
  std::int32_t num_segments = 0;
  std::int64_t active_rows_bound = -1;
  std::vector<float> token_weights;  ///< empty: not given
};

/// Routing of a call of experts: rows are (token, choice) pairs. Tokens, their slots (none: null,
/// slot 0 for all) and their weights stand in HostAddressing.
struct HostExperts {
  ExpertMode mode = ExpertMode::grouped;
  XRows x_rows = XRows::own;
  std::int64_t num_rows = 0;
  std::int64_t row_begin = 0;
  std::int64_t row_end = -1;                 ///< -1: num_rows
  std::int64_t bound_rows = 0;               ///< 0: num_rows
  std::vector<std::int32_t> expert_offsets;  ///< grouped
  std::vector<std::int32_t> row_tokens;      ///< grouped; empty: null
  std::vector<std::int32_t> expert_ids;      ///< gather
  std::int32_t top_k = 0;
  std::int32_t expert_base = 0;
  std::vector<float> row_weights;  ///< empty: not given
};

/// Gradients of one entry, f32: content before the call. Not given: a null pointer.
struct HostGradient {
  HostTensor da;     ///< [rank, in]
  HostTensor db;     ///< as B
  HostTensor dbias;  ///< [out]
  /// Index of the entry whose da this one adds to, at the same address; -1: its own.
  std::int64_t shared_da = -1;
};

/// By which rule of the contract an output is judged.
enum class Tolerance {
  spec,      ///< by the output's dtype
  exact,     ///< bits equal to the exact value, rounded once
  relative,  ///< relative Frobenius error
};

struct HostCall {
  Op op = Op::apply_linear;
  TableShape shape;
  std::vector<HostEntry> entries;  ///< [num_slots * num_experts * num_slices]
  HostAddressing addressing;
  CallOptions options;

  HostTensor x;    ///< [T, in], or [1, in] with x_row_stride 0
  HostTensor ids;  ///< [T]
  HostTensor h;    ///< [T, slices * max_rank]: input of expand, content before shrink
  HostTensor y;    ///< [T, sum of out]: content before

  HostExperts experts;  ///< of operations of experts

  // Of backward and backward_embedding. Rows of dy have the stride of y.
  HostTensor dy;                        ///< [T, sum of out]
  HostTensor dx;                        ///< [T, in]: content before; not given: left out
  HostTensor ds;                        ///< as h: content before; not given: not returned
  std::vector<HostGradient> gradients;  ///< [entries], or none
  bool wants_da = false;                ///< the array of pointers is given
  bool wants_db = false;
  bool wants_dbias = false;
  YMode gradient_mode = YMode::overwrite;
  Dropout dropout;  ///< of forward and backward

  // How the dense tensors above are laid out in memory. Row strides in elements, -1: dense.
  std::int64_t x_row_stride = -1;
  std::int64_t h_row_stride = -1;
  std::int64_t y_row_stride = -1;
  std::int64_t dx_row_stride = -1;
  std::int64_t ds_row_stride = -1;
  std::int64_t a_padding = 0;  ///< elements between the rows of every A
  std::int64_t b_padding = 0;
  std::int64_t slot_padding = 0;     ///< entries between the slots of the table
  std::int64_t misalignment = 0;     ///< elements by which x, h and y are shifted
  std::int64_t workspace_extra = 0;  ///< bytes given beyond what the backend asks for

  Tolerance tolerance = Tolerance::spec;
  double relative_tolerance = 0;
  /// Given values ("y", "h", "token_order", ...) are compared instead of the oracle's.
  std::map<std::string, HostTensor> expect;
  /// The call must be refused with this code, and y left alone.
  std::optional<StatusCode> expect_status;
};

inline std::int64_t entry_index(const TableShape& shape, std::int64_t slot, std::int64_t expert,
                                std::int64_t slice) noexcept {
  return (slot * shape.num_experts + expert) * shape.num_slices + slice;
}

/// A of an entry, wherever it lives.
inline const HostTensor& a_of(const HostCall& call, const HostEntry& entry) noexcept {
  return entry.shared_a < 0 ? entry.a : call.entries[static_cast<std::size_t>(entry.shared_a)].a;
}

/// "SLOT.SLICE", in operations of experts "SLOT.EXPERT.SLICE": how case files and messages call an
/// entry.
std::string entry_name(const HostCall& call, std::size_t entry);

/// Rows of h and y: routed rows in operations of experts, else tokens.
std::int64_t num_rows(const HostCall& call) noexcept;

/// What the addressing says of one row of h and y.
struct RowRoute {
  std::int32_t slot = -1;  ///< -1: no adapter, or outside the window
  std::int32_t expert = 0;
  std::int64_t x_row = 0;  ///< that it reads
  double weight = 1;       ///< row_weight * token_weight
  bool in_window = true;   ///< outside, nothing may change, overwriting or not
};

/// All rows, [num_rows(call)].
std::vector<RowRoute> routes_of(const HostCall& call);

/// The slot of every row, -1 where it has no adapter.
std::vector<std::int32_t> row_slots(const HostCall& call);

/// The stable grouping of token_slots that the contract describes, written into the arrays, with
/// room for max(min(num_tokens, num_slots), max_segments) segments; what is past the defined part
/// is `garbage`.
void group_on_host(HostAddressing& addressing, std::int32_t num_slots,
                   std::int64_t max_segments = 0, std::int32_t garbage = 0x7ead7ead);

bool is_experts(Op op) noexcept;   ///< shrink_experts, expand_experts, apply_experts
bool is_backward(Op op) noexcept;  ///< backward, backward_embedding
bool has_x(Op op) noexcept;        ///< backward: may be left out
bool has_ids(Op op) noexcept;
bool makes_h(Op op) noexcept;
bool makes_y(Op op) noexcept;
bool reads_h(Op op) noexcept;  ///< backward: may be left out
bool uses_a(Op op) noexcept;
bool uses_b(Op op) noexcept;
bool uses_bias(Op op) noexcept;  ///< embeddings and banks of experts have none

}  // namespace rankfold::testing
