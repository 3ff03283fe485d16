// shrink_experts, expand_experts, apply_experts. Banks have no bias either: one in an entry, which
// is device data, is ignored.
#include "rankfold/validate.hpp"
#include "validate_check.hpp"
#include "validate_overlap.hpp"

RANKFOLD_NAMESPACE_BEGIN

using namespace detail;  // NOLINT: a source file of the checks

namespace {

MatrixRule rule_of_routed_x(const TableShape& shape, const ExpertAddressing& addressing) noexcept {
  return addressing.x_rows == XRows::own ? rule_of_x(shape, addressing.num_rows, kRows)
                                         : rule_of_x(shape, addressing.num_tokens, kTokens);
}

}  // namespace

Status validate(const ShrinkExpertsArgs& args, Device device) noexcept {
  Status status;
  Check check(Op::shrink_experts, device, &status);
  const TableShape& shape = args.table.shape;
  (void)(check.options(args.options) && check.table(args.table) &&
         check.addressing(args.addressing, shape) && check.is_activation("x", args.x.dtype) &&
         check.matrix(args.x, rule_of_routed_x(shape, args.addressing)) &&
         check.is_float32("h", args.h.dtype) &&
         check.matrix(args.h, rule_of_h("h", shape, args.addressing.num_rows, kRows)) &&
         ByteRanges(args).check_outputs(check));
  return status;
}

Status validate(const ExpandExpertsArgs& args, Device device) noexcept {
  Status status;
  Check check(Op::expand_experts, device, &status);
  const TableShape& shape = args.table.shape;
  const std::int64_t rows = args.addressing.num_rows;
  (void)(check.options(args.options) && check.table(args.table) &&
         check.addressing(args.addressing, shape) && check.is_float32("h", args.h.dtype) &&
         check.matrix(args.h, rule_of_h("h", shape, rows, kRows)) &&
         check.is_activation("y", args.y.dtype) &&
         check.matrix(args.y, rule_of_y("y", shape, rows, kRows)) &&
         ByteRanges(args).check_outputs(check));
  return status;
}

Status validate(const ApplyExpertsArgs& args, Device device) noexcept {
  Status status;
  Check check(Op::apply_experts, device, &status);
  const TableShape& shape = args.table.shape;
  (void)(check.options(args.options) && check.table(args.table) &&
         check.addressing(args.addressing, shape) && check.is_activation("x", args.x.dtype) &&
         check.matrix(args.x, rule_of_routed_x(shape, args.addressing)) &&
         check.is_float32_or("y", args.y.dtype, "x", args.x.dtype) &&
         check.matrix(args.y, rule_of_y("y", shape, args.addressing.num_rows, kRows)) &&
         ByteRanges(args).check_outputs(check));
  return status;
}

RANKFOLD_NAMESPACE_END
