// shrink, expand, apply_linear.
#include "rankfold/validate.hpp"
#include "validate_check.hpp"
#include "validate_overlap.hpp"

RANKFOLD_NAMESPACE_BEGIN

using namespace detail;  // NOLINT: a source file of the checks

Status validate(const ShrinkArgs& args, Device device) noexcept {
  Status status;
  Check check(Op::shrink, device, &status);
  const TableShape& shape = args.table.shape;
  const std::int64_t rows = args.addressing.num_tokens;
  (void)(check.options(args.options) && check.layer_table(args.table) &&
         check.addressing(args.addressing) && check.is_activation("x", args.x.dtype) &&
         check.matrix(args.x, rule_of_x(shape, rows, kTokens)) &&
         check.is_float32("h", args.h.dtype) &&
         check.matrix(args.h, rule_of_h("h", shape, rows, kTokens)) &&
         ByteRanges(args).check_outputs(check));
  return status;
}

Status validate(const ExpandArgs& args, Device device) noexcept {
  Status status;
  Check check(Op::expand, device, &status);
  const TableShape& shape = args.table.shape;
  const std::int64_t rows = args.addressing.num_tokens;
  (void)(check.options(args.options) && check.layer_table(args.table) &&
         check.addressing(args.addressing) && check.is_float32("h", args.h.dtype) &&
         check.matrix(args.h, rule_of_h("h", shape, rows, kTokens)) &&
         check.is_activation("y", args.y.dtype) &&
         check.matrix(args.y, rule_of_y("y", shape, rows, kTokens)) &&
         ByteRanges(args).check_outputs(check));
  return status;
}

Status validate(const ApplyLinearArgs& args, Device device) noexcept {
  Status status;
  Check check(Op::apply_linear, device, &status);
  const TableShape& shape = args.table.shape;
  const std::int64_t rows = args.addressing.num_tokens;
  (void)(check.options(args.options) && check.layer_table(args.table) &&
         check.addressing(args.addressing) && check.is_activation("x", args.x.dtype) &&
         check.matrix(args.x, rule_of_x(shape, rows, kTokens)) &&
         check.is_float32_or("y", args.y.dtype, "x", args.x.dtype) &&
         check.matrix(args.y, rule_of_y("y", shape, rows, kTokens)) &&
         ByteRanges(args).check_outputs(check));
  return status;
}

RANKFOLD_NAMESPACE_END
