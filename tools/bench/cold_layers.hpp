// The layers of a point: copies of its weights and activations, enough of them to be cold in turn.
#pragma once

#include <cstdint>
#include <vector>

#include "calls.hpp"
#include "machine.hpp"
#include "pattern.hpp"
#include "rankfold/memory.hpp"
#include "step.hpp"
#include "workloads.hpp"
#include "yardsticks.hpp"

namespace rankfold::tools {

/// Where the tensors of one layer stand, in bytes from the layer's start; -1: the point has none.
struct LayerLayout {
  struct Weights {
    std::int32_t slot = 0;
    std::int32_t expert = 0;
    std::int32_t slice = 0;
    std::int32_t rank = 0;
    std::int64_t a = 0;
    std::int64_t b = 0;
  };
  std::vector<Weights> weights;  ///< of every (used slot, used expert, slice)
  std::int64_t x = 0;
  std::int64_t y = 0;  ///< dy in a backward pass
  std::int64_t dx = -1;
  std::int64_t h = -1;  ///< float32 [rows, slices * max_rank], training
  std::int64_t da = -1;
  std::int64_t db = -1;
  std::int64_t bytes = 0;
};

/// All layers of a point, in the backend's memory. Layers hold equal numbers; each stands at its
/// own address and has a table of its own.
class ColdLayers {
 public:
  /// Throws CommandError (exit 1) when the backend refuses.
  ColdLayers(LoraBackend& backend, Stream stream, Patterns& patterns, const Workload& point,
             const Step& step, int num_layers);

  int size() const { return static_cast<int>(tables_.size()); }
  Call call(int layer) const;
  /// What a layer's call must move.
  LayerRanges ranges(int layer) const;
  /// Enqueues making what calls add to (y, or dx) what it was.
  void restore();

  const LayerLayout& layout() const { return layout_; }
  std::byte* data(int layer) const { return memory_.as<std::byte>() + layer * layout_.bytes; }

 private:
  void fill_first();
  void make_table(int layer);
  void compute_h();
  ConstTensorView x(int layer) const;
  TensorView y(int layer) const;
  TensorView h(int layer) const;

  LoraBackend& backend_;
  Stream stream_;
  Patterns& patterns_;
  Workload point_;
  const Step& step_;
  LayerLayout layout_;
  Buffer memory_;
  Buffer gradients_;  ///< of each layer the pointers to da and db
  std::vector<AdapterTable> tables_;
};

LayerLayout layout_of(const Workload& point);

/// How many layers make a point cold within the machine's memory; 0: not even two fit.
int num_cold_layers(const Workload& point, const MachineLimits& limits);

}  // namespace rankfold::tools
