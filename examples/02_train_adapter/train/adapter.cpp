#include "train/adapter.hpp"

#include <cmath>

#include "train/random.hpp"

namespace train {

using rankfold::throw_if_error;

Adapter::Adapter(rankfold::LoraBackend& backend, std::span<const rankfold::TargetSpec> targets,
                 const AdapterShape& shape, std::uint64_t seed)
    : backend_(&backend),
      targets_(targets.begin(), targets.end()),
      shape_(shape),
      tables_(targets.size()),
      stream_(rankfold::OwnedStream::create(backend).value()) {
  std::size_t size = 0;
  for (std::size_t t = 0; t < targets_.size(); ++t) {
    const rankfold::TargetSpec& target = targets_[t];
    if (target.kind != rankfold::TargetKind::linear) continue;  // the embedding stays as it is
    for (std::int32_t s = 0; s < target.num_slices; ++s) {
      const std::int64_t out = target.slices[s].out;
      const auto a_size = static_cast<std::size_t>(shape.rank * target.in);
      const auto b_size = static_cast<std::size_t>(out * shape.rank);
      pairs_.push_back({static_cast<std::int32_t>(t), s, target.in, out, size, size + a_size});
      size += a_size + b_size;
    }
  }
  values_.resize(size);
  Random random(seed);
  for (const Pair& pair : pairs_) {
    const float bound = 1.0f / std::sqrt(static_cast<float>(pair.in));
    for (std::size_t i = pair.a; i < pair.b; ++i) values_[i] = random.between(-bound, bound);
  }

  device_values_ = rankfold::Buffer::create(backend, size * sizeof(float)).value();
  const auto* device = device_values_.as<float>();
  const auto scaling = static_cast<float>(shape.alpha / shape.rank);
  for (const Pair& pair : pairs_) {
    std::optional<rankfold::AdapterTable>& table = tables_[static_cast<std::size_t>(pair.target)];
    if (!table) {
      const rankfold::TargetSpec& target = targets_[static_cast<std::size_t>(pair.target)];
      rankfold::TableShape table_shape{
          .num_slots = 1, .num_slices = target.num_slices, .max_rank = shape.rank, .in = target.in};
      for (std::int32_t s = 0; s < target.num_slices; ++s)
        table_shape.out[s] = target.slices[s].out;
      table = rankfold::AdapterTable::create(backend, table_shape).value();
    }
    throw_if_error(table->set_entry(
        0, 0, pair.slice,
        {.a = device + pair.a, .b = device + pair.b, .rank = shape.rank, .scaling = scaling},
        stream_));
  }
  upload();
}

void Adapter::upload() {
  throw_if_error(backend_->copy(device_values_.data(), values_.data(),
                                values_.size() * sizeof(float), rankfold::CopyKind::host_to_device,
                                stream_));
  throw_if_error(stream_.synchronize());
}

const rankfold::AdapterTable* Adapter::table(int target) const {
  const std::optional<rankfold::AdapterTable>& table = tables_.at(static_cast<std::size_t>(target));
  return table ? &*table : nullptr;
}

void Adapter::save(const std::filesystem::path& folder, const std::string& base_model) const {
  std::vector<rankfold::AdapterWeights> weights;
  for (const Pair& pair : pairs_)
    weights.push_back({.target = pair.target,
                       .slice = pair.slice,
                       .alpha = shape_.alpha,
                       .a = rankfold::const_matrix(&values_[pair.a], shape_.rank, pair.in),
                       .b = rankfold::const_matrix(&values_[pair.b], pair.out, shape_.rank)});
  throw_if_error(
      rankfold::save_adapter(folder.string(), targets_, weights,
                             {.base_model = base_model.c_str(), .task_type = "CAUSAL_LM"}));
}

}  // namespace train
