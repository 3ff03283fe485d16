#include "train/shift_task.hpp"

namespace train {
namespace {

constexpr std::uint64_t kHeldOutSeed = 20;

std::string random_input(Random& random, std::int64_t length) {
  std::string input;
  for (std::int64_t i = 0; i < length; ++i) input += static_cast<char>('a' + random.below(26));
  return input;
}

}  // namespace

std::string shifted(const std::string& input) {
  std::string out = input;
  for (char& c : out) c = c == 'z' ? 'a' : static_cast<char>(c + 1);
  return out;
}

std::vector<std::string> held_out_inputs(std::int64_t count) {
  Random random(kHeldOutSeed);
  std::set<std::string> seen;
  std::vector<std::string> inputs;
  while (static_cast<std::int64_t>(inputs.size()) < count) {
    const auto length = kShortest + static_cast<std::int64_t>(inputs.size()) % kNumLengths;
    const std::string input = random_input(random, length);
    if (seen.insert(input).second) inputs.push_back(input);
  }
  return inputs;
}

std::string Examples::next_input() {
  while (true) {
    const std::string input = random_input(random_, kShortest + random_.below(kNumLengths));
    if (held_out_.count(input) == 0) return input;
  }
}

Batch Examples::next_batch(std::int64_t num_sequences) {
  Batch batch;
  for (std::int64_t i = 0; i < num_sequences; ++i) {
    const std::string input = next_input();
    add_example(input, shifted(input), batch);
  }
  return batch;
}

void add_example(const std::string& input, const std::string& output, Batch& batch) {
  const std::string text = "?" + input + ">" + output;
  const auto first = static_cast<std::int64_t>(batch.tokens.size());
  batch.sequences.push_back({first, static_cast<std::int64_t>(text.size())});
  for (const char c : text) batch.tokens.push_back(static_cast<unsigned char>(c));
  const std::string wanted = output + "\n";
  // The row of '>' answers with the first letter, and the row of each letter with the next.
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    batch.loss_rows.push_back(first + static_cast<std::int64_t>(input.size() + 1 + i));
    batch.wanted.push_back(static_cast<unsigned char>(wanted[i]));
  }
}

}  // namespace train
