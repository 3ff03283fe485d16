// forward, backward, and those of embeddings and experts.
#include <cinttypes>

#include "rankfold/validate.hpp"
#include "validate_check.hpp"
#include "validate_overlap.hpp"

RANKFOLD_NAMESPACE_BEGIN

using namespace detail;  // NOLINT: a source file of the checks

namespace {

constexpr auto kInvalid = StatusCode::invalid_argument;

bool dropout(Check& check, const Dropout& dropout, std::int64_t rows) noexcept {
  if (!(dropout.p >= 0.0f && dropout.p < 1.0f)) {  // NaN, too
    return check.fail(kInvalid, "dropout.p is %g; it should be in [0, 1)",
                      static_cast<double>(dropout.p));
  }
  std::int64_t last = 0;
  if (dropout.row_base < 0 || __builtin_add_overflow(dropout.row_base, rows, &last)) {
    return check.fail(kInvalid,
                      "dropout.row_base is %" PRId64
                      "; it should be 0 or more, and row_base + rows below 2^63",
                      dropout.row_base);
  }
  return true;
}

bool gradients(Check& check, const Gradients& grads, const TableShape& shape) noexcept {
  if (static_cast<std::uint32_t>(grads.mode) > 1) {
    return check.fail(kInvalid, "grads.mode is %d; it should be accumulate (0) or overwrite (1)",
                      static_cast<int>(grads.mode));
  }
  const std::int64_t count = std::int64_t{shape.num_slots} * shape.num_experts * shape.num_slices;
  return check.array("grads.da", grads.da, count, sizeof(float*), true) &&
         check.array("grads.db", grads.db, count, sizeof(float*), true) &&
         check.array("grads.dbias", grads.dbias, count, sizeof(float*), true);
}

bool given_h_and_ds(Check& check, const ConstTensorView& h, const ConstTensorView& ds,
                    const TableShape& shape, std::int64_t rows, const char* rows_of) noexcept {
  if (is_given(h) &&
      !(check.is_float32("h", h.dtype) && check.matrix(h, rule_of_h("h", shape, rows, rows_of)))) {
    return false;
  }
  return !is_given(ds) || (check.is_float32("ds", ds.dtype) &&
                           check.matrix(ds, rule_of_h("ds", shape, rows, rows_of)));
}

// What backward and backward_experts share; rows of x may be others than those of dy.
template <class Args>
bool products(Check& check, const Args& args, const MatrixRule& rule_of_x, std::int64_t rows,
              const char* rows_of) noexcept {
  const TableShape& shape = args.table.shape;
  const bool has_x = is_given(args.x);
  if (!check.is_activation("dy", args.dy.dtype) ||
      !check.matrix(args.dy, rule_of_y("dy", shape, rows, rows_of))) {
    return false;
  }
  if (has_x) {
    if (!check.is_activation("x", args.x.dtype) || !check.matrix(args.x, rule_of_x) ||
        !check.is_float32_or("dy", args.dy.dtype, "x", args.x.dtype)) {
      return false;
    }
  } else if (args.grads.da != nullptr || (args.grads.db != nullptr && !is_given(args.h))) {
    return check.fail(kInvalid, "x is not given; it should be, since %s",
                      args.grads.da != nullptr ? "grads.da is" : "grads.db is and h is not");
  }
  if (is_given(args.dx)) {
    const MatrixRule rule{"dx", rows, rows_of, shape.in, "table.shape.in"};
    if (!check.is_activation("dx", args.dx.dtype) || !check.matrix(args.dx, rule) ||
        (has_x && !check.is_float32_or("dx", args.dx.dtype, "x", args.x.dtype))) {
      return false;
    }
  }
  return given_h_and_ds(check, args.h, args.ds, shape, rows, rows_of);
}

}  // namespace

Status validate(const ForwardArgs& args, Device device) noexcept {
  Status status;
  Check check(Op::forward, device, &status);
  const TableShape& shape = args.table.shape;
  const std::int64_t rows = args.addressing.num_tokens;
  (void)(check.options(args.options) && check.layer_table(args.table) &&
         check.addressing(args.addressing) && dropout(check, args.dropout, rows) &&
         check.is_activation("x", args.x.dtype) &&
         check.matrix(args.x, rule_of_x(shape, rows, kTokens)) &&
         check.is_float32_or("y", args.y.dtype, "x", args.x.dtype) &&
         check.matrix(args.y, rule_of_y("y", shape, rows, kTokens)) &&
         check.is_float32("h", args.h.dtype) &&
         check.matrix(args.h, rule_of_h("h", shape, rows, kTokens)) &&
         ByteRanges(args).check_outputs(check));
  return status;
}

Status validate(const BackwardArgs& args, Device device) noexcept {
  Status status;
  Check check(Op::backward, device, &status);
  const TableShape& shape = args.table.shape;
  const std::int64_t rows = args.addressing.num_tokens;
  (void)(check.options(args.options) && check.layer_table(args.table) &&
         check.addressing(args.addressing) && dropout(check, args.dropout, rows) &&
         gradients(check, args.grads, shape) &&
         products(check, args, rule_of_x(shape, rows, kTokens), rows, kTokens) &&
         ByteRanges(args).check_outputs(check));
  return status;
}

Status validate(const ForwardEmbeddingArgs& args, Device device) noexcept {
  Status status;
  Check check(Op::forward_embedding, device, &status);
  const TableShape& shape = args.table.shape;
  const std::int64_t rows = args.addressing.num_tokens;
  (void)(check.options(args.options) && check.layer_table(args.table) &&
         check.addressing(args.addressing) && check.ids(args.ids, rows) &&
         check.is_activation("y", args.y.dtype) &&
         check.matrix(args.y, rule_of_y("y", shape, rows, kTokens)) &&
         check.is_float32("h", args.h.dtype) &&
         check.matrix(args.h, rule_of_h("h", shape, rows, kTokens)) &&
         ByteRanges(args).check_outputs(check));
  return status;
}

Status validate(const BackwardEmbeddingArgs& args, Device device) noexcept {
  Status status;
  Check check(Op::backward_embedding, device, &status);
  const TableShape& shape = args.table.shape;
  const std::int64_t rows = args.addressing.num_tokens;
  (void)(check.options(args.options) && check.layer_table(args.table) &&
         check.addressing(args.addressing) && gradients(check, args.grads, shape) &&
         (args.grads.dbias == nullptr ||
          check.fail(kInvalid,
                     "grads.dbias is given; it should be null, since embeddings have no "
                     "bias")) &&
         check.ids(args.ids, rows) && check.is_activation("dy", args.dy.dtype) &&
         check.matrix(args.dy, rule_of_y("dy", shape, rows, kTokens)) &&
         given_h_and_ds(check, args.h, args.ds, shape, rows, kTokens) &&
         ByteRanges(args).check_outputs(check));
  return status;
}

Status validate(const BackwardExpertsArgs& args, Device device) noexcept {
  Status status;
  Check check(Op::backward_experts, device, &status);
  const TableShape& shape = args.table.shape;
  const ExpertAddressing& addressing = args.addressing;
  const bool own = addressing.x_rows == XRows::own;
  (void)(check.options(args.options) && check.table(args.table) &&
         check.addressing(addressing, shape) && gradients(check, args.grads, shape) &&
         products(check, args,
                  rule_of_x(shape, own ? addressing.num_rows : addressing.num_tokens,
                            own ? kRows : kTokens),
                  addressing.num_rows, kRows) &&
         ByteRanges(args).check_outputs(check));
  return status;
}

RANKFOLD_NAMESPACE_END
