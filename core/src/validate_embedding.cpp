// gather_shrink, apply_embedding. A bias in an entry is device data, which nothing here can see: it
// is ignored, since embeddings have none.
#include "rankfold/validate.hpp"
#include "validate_check.hpp"
#include "validate_overlap.hpp"

RANKFOLD_NAMESPACE_BEGIN

using namespace detail;  // NOLINT: a source file of the checks

Status validate(const GatherShrinkArgs& args, Device device) noexcept {
  Status status;
  Check check(Op::gather_shrink, device, &status);
  const std::int64_t rows = args.addressing.num_tokens;
  (void)(check.options(args.options) && check.layer_table(args.table) &&
         check.addressing(args.addressing) && check.ids(args.ids, rows) &&
         check.is_float32("h", args.h.dtype) &&
         check.matrix(args.h, rule_of_h("h", args.table.shape, rows, kTokens)) &&
         ByteRanges(args).check_outputs(check));
  return status;
}

Status validate(const ApplyEmbeddingArgs& args, Device device) noexcept {
  Status status;
  Check check(Op::apply_embedding, device, &status);
  const std::int64_t rows = args.addressing.num_tokens;
  (void)(check.options(args.options) && check.layer_table(args.table) &&
         check.addressing(args.addressing) && check.ids(args.ids, rows) &&
         check.is_activation("y", args.y.dtype) &&
         check.matrix(args.y, rule_of_y("y", args.table.shape, rows, kTokens)) &&
         ByteRanges(args).check_outputs(check));
  return status;
}

RANKFOLD_NAMESPACE_END
