// The task that is learnt: every letter one further, z becomes a. The prompts are those of example
// 01, so again only the adapter can tell what to answer: "?hello>" -> "ifmmp".
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "train/model.hpp"
#include "train/random.hpp"

namespace train {

inline constexpr std::int64_t kShortest = 3;
inline constexpr std::int64_t kLongest = 10;
inline constexpr std::int64_t kNumLengths = kLongest - kShortest + 1;
/// Rows of the longest example: '?', input, '>', output.
inline constexpr std::int64_t kMostRows = 2 * kLongest + 2;

std::string shifted(const std::string& input);

/// `count` different inputs, as many of each length, from a seed of their own.
std::vector<std::string> held_out_inputs(std::int64_t count);

/// Random examples, none of which is held out.
class Examples {
 public:
  Examples(std::uint64_t seed, const std::vector<std::string>& held_out)
      : random_(seed), held_out_(held_out.begin(), held_out.end()) {}

  std::string next_input();
  Batch next_batch(std::int64_t num_sequences);

 private:
  Random random_;
  std::set<std::string> held_out_;
};

/// Adds "?input>output"; the output and the newline after it are to be learnt, the prompt is not.
void add_example(const std::string& input, const std::string& output, Batch& batch);

}  // namespace train
