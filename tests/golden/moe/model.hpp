// A small Qwen3-MoE in plain Eigen products: attention with normalised queries and keys, a router,
// and experts whose gate, up and down projections take their deltas from rankfold.
#pragma once

#include <cstdint>
#include <filesystem>
#include <rankfold/rankfold.hpp>
#include <span>
#include <string>
#include <vector>

#include "llama/matrix.hpp"

namespace moe {

using llama::Matrix;
using llama::RowVector;

struct Config {
  std::int64_t hidden = 0;
  std::int64_t inner = 0;  ///< moe_intermediate_size
  std::int64_t num_layers = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t num_experts = 0;
  std::int64_t top_k = 0;
  float eps = 0;
  float rope_theta = 0;
};

struct Layer {
  RowVector input_norm, post_norm, q_norm, k_norm;
  Matrix q, k, v, o, router;
  std::vector<Matrix> gate, up, down;  ///< an expert each
};

/// Which (token, choice) goes to which expert, with what weight: arrays [tokens * top_k].
struct Routes {
  std::vector<std::int32_t> experts;
  std::vector<float> weights;
};

/// How the routed rows are handed to rankfold.
struct Layout {
  rankfold::ExpertMode mode = rankfold::ExpertMode::grouped;
  /// Rows a call, 0: all at once. The window moves over the same arrays.
  std::int64_t window = 0;
};

/// The deltas of the experts of every layer: adapters in a pool, one table for gate and up (two
/// slices) and one for down.
class ExpertDeltas {
 public:
  /// Adapters: PEFT folders, slot i for the i-th. Throws rankfold::Error.
  ExpertDeltas(const Config& config, const std::vector<std::filesystem::path>& adapters,
               rankfold::StreamMode mode);

  /// y += the delta of the layer's gate and up (or down) for the rows of `addressing`.
  void apply(std::int64_t layer, bool down, const Matrix& x,
             const rankfold::ExpertAddressing& addressing, std::int64_t window, Matrix& y);
  const std::vector<std::int32_t>& slots() const { return slots_; }

 private:
  rankfold::AdapterPool make_pool(const Config& config);

  std::vector<std::string> modules_;
  std::vector<std::string> keys_;
  std::vector<std::vector<rankfold::SliceSpec>> slices_;
  std::vector<rankfold::TargetSpec> targets_;
  rankfold::AdapterPool pool_;
  std::vector<std::int32_t> slots_;
  rankfold::OwnedStream stream_;
};

class Model {
 public:
  static Model load(const std::filesystem::path& folder);
  const Config& config() const { return config_; }

  /// Logits of sequences of equal length, all tokens; slots: one a sequence, -1 the base. Without
  /// deltas: the base alone.
  Matrix forward(std::span<const std::vector<std::int32_t>> sequences,
                 std::span<const std::int32_t> slots, ExpertDeltas* deltas,
                 const Layout& layout) const;
  /// The block of experts: sum over the chosen experts of weight * down(silu(gate x) * up x).
  Matrix experts(std::int64_t layer, const Matrix& x, std::span<const std::int32_t> slots,
                 ExpertDeltas* deltas, const Layout& layout) const;
  Routes route(std::int64_t layer, const Matrix& x) const;

 private:
  Matrix attention(const Layer& layer, const Matrix& x, std::int64_t length) const;

  Config config_;
  Matrix embed_, head_;
  RowVector norm_;
  std::vector<Layer> layers_;
};

}  // namespace moe
