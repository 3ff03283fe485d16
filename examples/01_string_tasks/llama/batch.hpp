// One step's work: rows (tokens) of several requests, prefill and decode mixed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "llama/kv_cache.hpp"

namespace llama {

/// Of which rows of a sequence the head makes logits.
enum class Logits { none, last, all };

struct Batch {
  /// Rows [first_row, first_row + num_rows) continue what `cache` holds.
  struct Sequence {
    KvCache* cache;
    std::int64_t first_row;
    std::int64_t num_rows;
  };

  std::vector<std::int32_t> tokens;      ///< a row each
  std::vector<std::int32_t> slots;       ///< the row's adapter slot, -1: the bare base
  std::vector<Sequence> sequences;       ///< a request at most once
  std::vector<std::int64_t> logit_rows;  ///< rows that go through the head

  std::int64_t num_rows() const { return static_cast<std::int64_t>(tokens.size()); }

  /// Appends a run of tokens of one request.
  void add(KvCache& cache, std::span<const std::int32_t> run, std::int32_t slot, Logits logits) {
    const std::int64_t first = num_rows();
    sequences.push_back({&cache, first, static_cast<std::int64_t>(run.size())});
    tokens.insert(tokens.end(), run.begin(), run.end());
    slots.insert(slots.end(), run.size(), slot);
    if (logits == Logits::all)
      for (std::int64_t row = first; row < num_rows(); ++row) logit_rows.push_back(row);
    if (logits == Logits::last && !run.empty()) logit_rows.push_back(num_rows() - 1);
  }
};

}  // namespace llama
