// A small batch with its own table, and what the operations should make of it in float64.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "rankfold/memory.hpp"
#include "rankfold/operations.hpp"
#include "rankfold/reference.hpp"
#include "rankfold/registry.hpp"

namespace rankfold::reference_test {

LoraBackend& device();

struct BatchSpec {
  std::int64_t tokens = 5;
  std::int64_t in = 40;
  std::vector<std::int64_t> out = {24};
  std::int32_t slots = 3;
  std::int32_t max_rank = 8;
  DType x = DType::f32, y = DType::f32, a = DType::f32, b = DType::f32;
  bool bias = false;
  bool token_weights = false;
  bool integers = false;  ///< exact data: small integers, scalings that are powers of two
  std::uint32_t seed = 1;
};

/// Elements of any dtype, as bytes.
struct Elements {
  DType dtype = DType::f32;
  std::vector<std::byte> bytes;

  void resize(DType type, std::int64_t count);
  std::int64_t size() const { return static_cast<std::int64_t>(bytes.size() / size_of(dtype)); }
  void set(std::int64_t index, float value);
  double get(std::int64_t index) const;
};

struct Batch {
  explicit Batch(const BatchSpec& spec);

  Elements x, y;
  std::vector<std::int32_t> slots;
  std::vector<float> weights;
  std::vector<Elements> a, b;  // [slot * slices + slice]
  std::vector<std::vector<float>> bias;
  std::vector<AdapterEntry> entries;
  std::vector<std::int32_t> ids;  // for embeddings, in [-2, in + 2)
  BatchSpec spec;

  std::int64_t out_columns() const;
  TableShape shape() const;
  AdapterTableView table() const;
  LoraAddressing addressing() const;
  ApplyLinearArgs linear(const Elements& into);
  ApplyEmbeddingArgs embedding(const Elements& into);

  /// h[t, slice * max_rank + j], zero where nothing is defined.
  std::vector<double> oracle_h(bool embedding = false) const;
  std::vector<double> oracle_y(YMode mode = YMode::accumulate, bool embedding = false) const;
};

/// Runs the operation on a fresh stream of the mode with a poisoned workspace, and waits.
Status run(const ApplyLinearArgs& args, StreamMode mode = StreamMode::inline_);
Status run(const ApplyEmbeddingArgs& args, StreamMode mode = StreamMode::inline_);
Status run(const ShrinkArgs& args, StreamMode mode = StreamMode::inline_);
Status run(const ExpandArgs& args, StreamMode mode = StreamMode::inline_);
Status run(const GatherShrinkArgs& args, StreamMode mode = StreamMode::inline_);
Status run(const ForwardArgs& args, StreamMode mode = StreamMode::inline_);
Status run(const BackwardArgs& args, StreamMode mode = StreamMode::inline_);
Status run(const ForwardEmbeddingArgs& args, StreamMode mode = StreamMode::inline_);
Status run(const BackwardEmbeddingArgs& args, StreamMode mode = StreamMode::inline_);

/// Whether got is within the tolerances of the contract of exact, given the delta.
bool close(const Elements& got, const std::vector<double>& exact, const std::vector<double>& base);

}  // namespace rankfold::reference_test
