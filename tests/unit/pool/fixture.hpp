// A small model of three targets, adapters made of integers, and steps whose every row is checked
// exactly against the adapter that its slot should hold.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "fake_backend.hpp"
#include "rankfold/memory.hpp"
#include "rankfold/operations.hpp"
#include "rankfold/pool.hpp"

namespace rankfold::testing {

/// Targets of the model; a bit each says which of them an adapter has.
enum Targets : unsigned { kQkv = 1, kDown = 2, kEmbed = 4, kAll = 7 };
inline constexpr std::int32_t kNumTargets = 3;
inline constexpr std::int32_t kMaxRank = 8;
inline constexpr std::int64_t kVocabulary = 20;

/// A slice that is not sharded.
SliceSpec slice(const char* module, std::int64_t out);

std::vector<TargetSpec> model_targets();

/// Weights of one adapter: integers from -3 to 3 that depend on the id and on every index.
struct AdapterSpec {
  int id = 0;
  std::int32_t rank = 4;
  unsigned targets = kAll;
  DType dtype = DType::bf16;
  float scaling = 0.5f;
  bool bias = false;
  std::int64_t vocabulary = kVocabulary;
};

class SyntheticAdapter {
 public:
  explicit SyntheticAdapter(const AdapterSpec& spec);
  const AdapterSpec& spec() const { return spec_; }
  std::vector<AdapterBinding>& bindings() { return bindings_; }
  std::span<const AdapterBinding> view() const { return bindings_; }
  /// Makes every byte of the weights wrong: what must not matter after prepare().
  void scramble();

 private:
  AdapterSpec spec_;
  std::vector<std::vector<std::byte>> storage_;
  std::vector<AdapterBinding> bindings_;
};

PoolOptions small_options(std::int32_t num_slots, std::uint64_t arena_bytes);

/// Arena bytes that an adapter of this spec takes in tables of `dtype`.
std::uint64_t arena_bytes_of(const AdapterSpec& spec, DType dtype = DType::bf16);

/// One batch through all targets on one stream. Rows: a slot each. Lives until the stream has run.
class Step {
 public:
  Step(LoraBackend& backend, const AdapterPool& pool, std::vector<std::int32_t> token_slots,
       int seed = 0);
  Status enqueue(Stream stream);
  /// Whether row t of every target holds what the adapter gives; null: what was there before.
  bool row_is(std::size_t row, const AdapterSpec* adapter) const;
  /// Old content again, so that the step can be enqueued anew.
  void reset();

 private:
  float start(std::size_t row, std::int64_t column) const;
  float x(std::int32_t target, std::size_t row, std::int64_t k) const;
  std::int64_t id(std::size_t row) const;

  LoraBackend& backend_;
  int seed_;
  std::vector<std::int32_t> token_slots_;
  AdapterTableView tables_[kNumTargets];
  std::vector<float> x_[kNumTargets];
  std::vector<std::int64_t> ids_;
  std::vector<float> y_[kNumTargets];
  std::vector<float> workspace_[kNumTargets];
};

/// prepare and publish, asserting success.
AdapterHandle load_ok(AdapterPool& pool, const AdapterSpec& spec, Stream upload, Stream step);

}  // namespace rankfold::testing
