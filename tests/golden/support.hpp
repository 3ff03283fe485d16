// What the golden tests share: golden files, the two rules, and a model with adapters in a pool.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <rankfold/rankfold.hpp>
#include <string>
#include <vector>

#include "llama/model.hpp"
#include "llama/targets.hpp"
#include "serving/adapter_store.hpp"

namespace golden {

using llama::Matrix;
using Tokens = std::vector<std::int32_t>;

inline const std::filesystem::path kPeftLlama = GOLDEN_PEFT_LLAMA;
inline const std::filesystem::path kTasks = GOLDEN_TASKS;

/// The adapters of peft_llama that must load, and those that must be refused, with the key.
const std::vector<std::string>& accepted_adapters();
const std::vector<std::pair<std::string, std::string>>& refused_adapters();

/// golden.safetensors of a folder.
class GoldenFile {
 public:
  explicit GoldenFile(const std::filesystem::path& folder);
  /// input_ids, a row a sequence.
  std::vector<Tokens> sequences() const;
  /// All dimensions but the last as rows: logits [sequences * tokens, vocab].
  Matrix matrix(const std::string& name) const;
  Matrix logits(const std::string& adapter) const { return matrix("logits." + adapter); }

 private:
  rankfold::Safetensors file_;
};

/// Error as a fraction of what the rule allows; at most 1 is right. NaN counts as infinite.
/// base: ||got - golden|| <= 1e-5 ||golden||.
double base_error(const Matrix& got, const Matrix& golden);
/// adapter: ||got - golden|| <= 1e-4 ||golden - golden_base||, so that an adapter's small change is
/// not hidden behind the base.
double adapter_error(const Matrix& got, const Matrix& golden, const Matrix& golden_base);

/// The stream modes to be tested on the active backend: both on a CPU.
std::vector<rankfold::StreamMode> stream_modes();
const char* to_string(rankfold::StreamMode mode);

/// How the tokens of a sequence reach the model.
enum class Feed { whole, one_by_one };

/// The target specs of a model, to be altered: targets[i].slices points into slices[i].
struct Specs {
  std::vector<rankfold::TargetSpec> targets;
  std::vector<std::vector<rankfold::SliceSpec>> slices;
};

/// A model, its adapters in a float32 pool, and the deltas.
class Rig {
 public:
  using ChangeSpecs = std::function<void(Specs&)>;

  /// Adapters: names of folders below folder/adapters. `change` may alter the target specs: how the
  /// tests show that a wrong one is seen.
  Rig(const std::filesystem::path& folder, const std::vector<std::string>& adapters,
      rankfold::StreamMode mode, const ChangeSpecs& change = {});

  /// Logits of all sequences under each of the adapters ("base": none), all in one batch: a matrix
  /// an adapter.
  std::vector<Matrix> logits(const std::vector<Tokens>& sequences,
                             const std::vector<std::string>& adapters, Feed feed = Feed::whole);
  /// The same batch without any delta.
  std::vector<Matrix> base_logits(const std::vector<Tokens>& sequences, std::size_t copies);

  const llama::Model& model() const { return model_; }
  llama::Deltas& deltas() { return deltas_; }
  std::int32_t slot(const std::string& adapter);

 private:
  std::vector<Matrix> run(const std::vector<Tokens>& sequences,
                          const std::vector<std::int32_t>& slots, llama::Deltas& deltas, Feed feed);

  llama::Model model_;
  llama::Targets targets_;
  Specs specs_;
  serving::AdapterStore store_;
  llama::Deltas deltas_;
};

/// A folder for a test's own files, removed with the object.
class ScratchFolder {
 public:
  explicit ScratchFolder(const std::string& name);
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace golden
