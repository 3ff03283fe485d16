#include "support.hpp"

#include <unistd.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace golden {

const std::vector<std::string>& accepted_adapters() {
  static const std::vector<std::string> names = {
      "all_linear_r8",      "embed_head_r6", "lora_bias_r8", "qv_rslora_r4", "r1",
      "rank_alpha_pattern", "regex_layer1"};
  return names;
}

const std::vector<std::pair<std::string, std::string>>& refused_adapters() {
  static const std::vector<std::pair<std::string, std::string>> names = {
      {"dora_r8", "use_dora"}, {"modules_to_save_head", "modules_to_save"}};
  return names;
}

GoldenFile::GoldenFile(const std::filesystem::path& folder)
    : file_(rankfold::Safetensors::read((folder / "golden.safetensors").string()).value()) {}

std::vector<Tokens> GoldenFile::sequences() const {
  const rankfold::SafetensorsEntry* entry = file_.find("input_ids");
  if (entry == nullptr || entry->dtype != rankfold::DType::i64 || entry->num_dims != 2)
    throw std::runtime_error("golden file: input_ids must be I64 [sequences, tokens]");
  std::vector<std::int64_t> ids(static_cast<std::size_t>(entry->sizes[0] * entry->sizes[1]));
  std::memcpy(ids.data(), entry->data, ids.size() * sizeof(std::int64_t));
  std::vector<Tokens> sequences;
  for (std::int64_t i = 0; i < entry->sizes[0]; ++i) {
    const auto first = ids.begin() + i * entry->sizes[1];
    Tokens& tokens = sequences.emplace_back();
    for (auto id = first; id != first + entry->sizes[1]; ++id)
      tokens.push_back(static_cast<std::int32_t>(*id));
  }
  return sequences;
}

Matrix GoldenFile::matrix(const std::string& name) const {
  const rankfold::SafetensorsEntry* entry = file_.find(name);
  if (entry == nullptr || entry->dtype != rankfold::DType::f32)
    throw std::runtime_error("golden file: no F32 tensor " + name);
  std::int64_t rows = 1;
  for (int i = 0; i + 1 < entry->num_dims; ++i) rows *= entry->sizes[i];
  Matrix out(rows, entry->sizes[entry->num_dims - 1]);
  std::memcpy(out.data(), entry->data, entry->bytes);
  return out;
}

namespace {

double distance(const Matrix& a, const Matrix& b) {
  if (a.rows() != b.rows() || a.cols() != b.cols()) return std::numeric_limits<double>::infinity();
  const double norm = (a.cast<double>() - b.cast<double>()).norm();
  return std::isnan(norm) ? std::numeric_limits<double>::infinity() : norm;
}

}  // namespace

double base_error(const Matrix& got, const Matrix& golden) {
  return distance(got, golden) / (1e-5 * golden.cast<double>().norm());
}

double adapter_error(const Matrix& got, const Matrix& golden, const Matrix& golden_base) {
  return distance(got, golden) / (1e-4 * distance(golden, golden_base));
}

std::vector<rankfold::StreamMode> stream_modes() {
  if (rankfold::backend().device().type != rankfold::DeviceType::cpu)
    return {rankfold::StreamMode::automatic};
  return {rankfold::StreamMode::inline_, rankfold::StreamMode::worker};
}

const char* to_string(rankfold::StreamMode mode) {
  switch (mode) {
    case rankfold::StreamMode::inline_:
      return "inline stream";
    case rankfold::StreamMode::worker:
      return "worker stream";
    default:
      return "the backend's own stream";
  }
}

namespace {

constexpr std::int64_t kMaxRows = 512;

std::vector<serving::AdapterSource> sources(const std::filesystem::path& folder,
                                            const std::vector<std::string>& adapters) {
  std::vector<serving::AdapterSource> list;
  for (const std::string& name : adapters) list.push_back({name, folder / "adapters" / name});
  return list;
}

Specs copy_specs(const llama::Targets& targets, const Rig::ChangeSpecs& change) {
  Specs specs;
  specs.targets.assign(targets.specs().begin(), targets.specs().end());
  for (rankfold::TargetSpec& target : specs.targets) {
    specs.slices.emplace_back(target.slices, target.slices + target.num_slices);
    target.slices = specs.slices.back().data();
  }
  if (change) change(specs);
  return specs;
}

}  // namespace

Rig::Rig(const std::filesystem::path& folder, const std::vector<std::string>& adapters,
         rankfold::StreamMode mode, const ChangeSpecs& change)
    : model_(llama::Model::load(folder / "base")),
      targets_(model_.config(), model_.weights()),
      specs_(copy_specs(targets_, change)),
      store_(rankfold::backend(), specs_.targets, sources(folder, adapters),
             static_cast<std::int32_t>(adapters.size())),
      deltas_(rankfold::backend(), store_.tables(), kMaxRows, mode) {}

std::int32_t Rig::slot(const std::string& adapter) {
  if (adapter == "base") return -1;
  return store_.pin(adapter, deltas_.stream(), serving::AdapterStore::Upload::wait).value();
}

std::vector<Matrix> Rig::logits(const std::vector<Tokens>& sequences,
                                const std::vector<std::string>& adapters, Feed feed) {
  std::vector<std::int32_t> slots;
  for (const std::string& adapter : adapters) slots.push_back(slot(adapter));
  std::vector<Matrix> result = run(sequences, slots, deltas_, feed);
  store_.unpin_all();
  return result;
}

std::vector<Matrix> Rig::base_logits(const std::vector<Tokens>& sequences, std::size_t copies) {
  llama::Deltas none;
  return run(sequences, std::vector<std::int32_t>(copies, -1), none, Feed::whole);
}

// The sequences of an adapter do not stand together: row blocks of different slots alternate, as in
// real traffic.
std::vector<Matrix> Rig::run(const std::vector<Tokens>& sequences,
                             const std::vector<std::int32_t>& slots, llama::Deltas& deltas,
                             Feed feed) {
  const auto length = static_cast<std::int64_t>(sequences.at(0).size());
  std::vector<Matrix> out(slots.size());
  for (Matrix& matrix : out)
    matrix.resize(static_cast<std::int64_t>(sequences.size()) * length, model_.config().vocab_size);

  std::vector<llama::KvCache> caches(sequences.size() * slots.size(),
                                     llama::KvCache(model_.config(), length));
  const std::int64_t run_length = feed == Feed::whole ? length : 1;
  for (std::int64_t begin = 0; begin < length; begin += run_length) {
    llama::Batch batch;
    for (std::size_t i = 0; i < sequences.size(); ++i)
      for (std::size_t j = 0; j < slots.size(); ++j)
        batch.add(
            caches[i * slots.size() + j],
            std::span(sequences[i])
                .subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(run_length)),
            slots[j], llama::Logits::all);
    const Matrix logits = model_.forward(batch, deltas);
    std::int64_t row = 0;
    for (std::size_t i = 0; i < sequences.size(); ++i)
      for (std::size_t j = 0; j < slots.size(); ++j, row += run_length)
        out[j].middleRows(static_cast<std::int64_t>(i) * length + begin, run_length) =
            logits.middleRows(row, run_length);
  }
  return out;
}

namespace {

std::string next_number() {
  static int number = 0;
  return std::to_string(number++);
}

}  // namespace

ScratchFolder::ScratchFolder(const std::string& name)
    : path_(std::filesystem::temp_directory_path() /
            ("rankfold_" + name + "_" + std::to_string(getpid()) + "_" + next_number())) {
  std::filesystem::create_directories(path_);
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace golden
