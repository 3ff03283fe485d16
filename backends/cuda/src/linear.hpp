// Operations on rows of linear layers and embeddings: which kernels compute them, by host-known
// bounds alone.
#pragma once

#include "kernels/decode.hpp"
#include "kernels/prefill.hpp"
#include "operation.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace cuda {

struct LinearPlan {
  Strategy strategy = Strategy::general;
  Grouping::Kind kind = Grouping::uniform;
  bool groups_rows = false;   ///< token_slots are grouped in the workspace first
  std::int64_t active = 0;    ///< bound of the rows with an adapter
  std::int64_t segments = 0;  ///< bound of their segments
  std::int64_t blocks = 0;    ///< row blocks of the kernels of few rows
  int splits = 1;             ///< of K, whose h stands in the workspace
  int tiles = 0;              ///< of a warp in the expand of few rows; 0: chosen there
  PrefillPlan prefill;
};

/// Whether this is one of the operations here.
bool is_linear_op(Op op) noexcept;
/// The plan of a problem, or why its strategy declines it (unsupported).
Result<LinearPlan> plan_linear(const Problem& problem, const DeviceTraits& traits);
PrefillDevice prefill_device(const DeviceTraits& traits) noexcept;

/// One call: groups rows where they must be, then shrinks and expands.
class LinearCall {
 public:
  LinearCall(const Problem& problem, const DeviceTraits& traits, const LoraAddressing& addressing,
             const AdapterTableView& table, const Parts& parts, cudaStream_t stream) noexcept
      : problem_(problem),
        traits_(traits),
        addressing_(addressing),
        table_(table),
        parts_(parts),
        stream_(stream) {}

  /// Comes first.
  Status begin();
  /// h = x A^T: into the workspace where the plan splits K, else into h. dropout: the general
  /// kernels make it.
  Status shrink(const ConstTensorView& x, const Hidden& h, const DropoutMask& dropout);
  /// h of ids.
  Status gather(const ConstTensorView& ids, const Hidden& h);
  /// The sum of what shrink made, into h, where the plan splits K.
  Status finish_h(const Hidden& h);
  /// y += f (h B^T + bias) of h, or of what shrink made. keeps: h is the caller's and gets the sum
  /// of the splits.
  Status expand(const Hidden& h, const TensorView& y, bool made_h, bool with_bias, bool keeps);

  /// Where h stands when the caller has none.
  Hidden own_h() const noexcept { return parts_.h(); }

 private:
  SplitHidden split_hidden(const Hidden& h) const noexcept;
  /// Whether the shrink may be launched while the kernel before ends, and asks for A meanwhile.
  bool is_early() const noexcept;
  bool fetches_early() const noexcept;
  bool is_split() const noexcept { return shrunk_ && plan_.splits > 1; }

  const Problem& problem_;
  const DeviceTraits& traits_;
  const LoraAddressing& addressing_;
  const AdapterTableView& table_;
  const Parts& parts_;
  cudaStream_t stream_;
  LinearPlan plan_;
  Grouping grouping_;
  Rows places_;
  bool shrunk_ = false;  ///< by the kernels of plan_, and nothing was launched since
};

}  // namespace cuda
RANKFOLD_NAMESPACE_END
