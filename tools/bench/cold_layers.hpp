// The layers of a serve point: copies of its weights, x and y, enough of them to be cold in turn.
#pragma once

#include <cstdint>
#include <vector>

#include "machine.hpp"
#include "rankfold/memory.hpp"
#include "rankfold/operations.hpp"
#include "workloads.hpp"
#include "yardsticks.hpp"

namespace rankfold::tools {

/// Where the tensors of one layer stand, in bytes from the layer's start.
struct LayerLayout {
  struct Weights {
    std::int32_t slot = 0;
    std::int32_t slice = 0;
    std::int64_t a = 0;
    std::int64_t b = 0;
  };
  std::vector<Weights> weights;  ///< of every (used slot, slice)
  std::int64_t x = 0;
  std::int64_t y = 0;
  std::int64_t bytes = 0;
};

/// All layers of a point, in the backend's memory. Layers hold equal numbers; each stands at its
/// own address.
class ColdLayers {
 public:
  /// Throws CommandError (exit 1) when the backend refuses.
  ColdLayers(LoraBackend& backend, Stream stream, const Workload& point, DType dtype, float scale,
             int num_layers);

  int size() const { return static_cast<int>(layers_.size()); }
  /// The call of one layer; `addressing` is the caller's.
  ApplyLinearArgs args(int layer, const LoraAddressing& addressing) const;
  /// What a layer's call must move.
  LayerRanges ranges(int layer) const;

  const LayerLayout& layout() const { return layout_; }
  /// What every layer held when it was made.
  const std::byte* initial() const { return initial_.as<std::byte>(); }
  std::byte* data(int layer) const { return memory_.as<std::byte>() + layer * layout_.bytes; }

 private:
  void fill_initial(const Workload& point);

  Workload shape_;
  DType dtype_;
  Device device_;
  std::int64_t columns_ = 0;
  std::int64_t active_rows_ = 0;
  LayerLayout layout_;
  Buffer initial_;
  Buffer memory_;
  struct Layer {
    AdapterTable table;
  };
  std::vector<Layer> layers_;
};

/// How many layers make a point cold within the machine's memory; 0: not even two fit.
int num_cold_layers(const Workload& point, const MachineLimits& limits);

}  // namespace rankfold::tools
