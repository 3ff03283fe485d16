// What a small file may ask for: what strides, ranks, slots and rows of no bytes blow up is
// bounded, each tensor of the replay by kMaxReplayBytes.
#include <algorithm>
#include <cstring>

#include "case_file_parts.hpp"

namespace rankfold::conformance {

using testing::HostCall;
using testing::HostTensor;

namespace {

void check_stride(CaseFields& fields, const std::string& attribute, std::int64_t stride,
                  const std::string& name, const HostTensor& tensor) {
  if (stride < 0 || !tensor.given()) return;
  check_replay(fields, tensor.rows(), stride, size_of(tensor.dtype), name,
               "attribute " + attribute + " is " + std::to_string(stride));
}

// All rows of a broadcast x are one row in memory, so a file that stores several stores equals.
void check_broadcast(CaseFields& fields, const HostTensor& x) {
  if (!fields.ok() || x.rows() < 2) return;
  const std::size_t row_bytes = x.bytes.size() / static_cast<std::size_t>(x.rows());
  for (std::int64_t row = 1; row < x.rows(); ++row) {
    const std::byte* const at = x.bytes.data() + static_cast<std::size_t>(row) * row_bytes;
    if (row_bytes == 0 || std::memcmp(x.bytes.data(), at, row_bytes) == 0) continue;
    fields.fail("tensor x has another row " + std::to_string(row) +
                " than row 0; with x_row_stride 0 it should have one row or equal rows");
    return;
  }
}

}  // namespace

void check_replay(CaseFields& fields, std::int64_t rows, std::int64_t columns, std::size_t element,
                  const std::string& tensor, const std::string& why) {
  const std::int64_t most = kMaxReplayBytes / static_cast<std::int64_t>(element);
  if (rows <= 0 || columns <= 0 || columns <= most / rows) return;
  fields.fail(why + "; " + tensor + " of the replay would have " + std::to_string(rows) + " x " +
              std::to_string(columns) + " elements, it should have at most " +
              std::to_string(most) + " (1 GiB)");
}

void check_strides(CaseFields& fields, const HostCall& call) {
  check_stride(fields, "x_row_stride", call.x_row_stride, "x", call.x);
  check_stride(fields, "x_row_stride", call.x_row_stride, "dx", call.dx);
  check_stride(fields, "y_row_stride", call.y_row_stride, "y", call.y);
  check_stride(fields, "y_row_stride", call.y_row_stride, "dy", call.dy);
  if (call.x_row_stride == 0) check_broadcast(fields, call.x);
}

void check_broadcast_row(CaseFields& fields, const HostCall& call, std::int64_t rows) {
  if (!call.x.given() || call.x_row_stride != 0 || call.x.rows() > 0 || rows <= 0) return;
  fields.fail("tensor x has shape " + shape_text(call.x) +
              "; it should have a row, which x_row_stride 0 gives to all");
}

void check_rows(CaseFields& fields, const HostCall& call) {
  const std::int64_t rows = testing::num_rows(call);
  const std::string there_are = "there are " + std::to_string(rows) + " rows";
  check_replay(fields, rows, 1, sizeof(testing::RowRoute), "the list of rows", there_are);
  const std::string rank = "attribute max_rank is " + std::to_string(call.shape.max_rank);
  const std::int64_t columns =
      std::int64_t{call.shape.num_slices} * std::max(call.shape.max_rank, 1);
  // h and ds, in the workspace where the caller has none.
  check_replay(fields, std::max<std::int64_t>(rows, 1), columns, sizeof(float), "h",
               rank + " and " + there_are);
  if (!testing::is_backward(call.op)) return;
  // The gradients of one slot, of which the workspace has partial sums.
  const bool linear = !testing::has_ids(call.op);
  if (linear) {
    check_replay(fields, columns, call.shape.in, sizeof(float), "da of a slot",
                 rank + " and x has " + std::to_string(call.shape.in) + " columns");
  }
  check_replay(fields, std::max(call.shape.max_rank, 1), call.dy.columns(), sizeof(float),
               "db of a slot",
               rank + " and dy has " + std::to_string(call.dy.columns()) + " columns");
}

}  // namespace rankfold::conformance
