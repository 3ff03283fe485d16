#include <algorithm>

#include "model.hpp"

namespace moe {

ExpertDeltas::ExpertDeltas(const Config& config, const std::vector<std::filesystem::path>& adapters,
                           rankfold::StreamMode mode)
    : pool_(make_pool(config)),
      stream_(rankfold::OwnedStream::create(rankfold::backend(), mode).value()) {
  for (const std::filesystem::path& folder : adapters) {
    const rankfold::Adapter adapter = rankfold::load_adapter(folder.string(), targets_).value();
    const rankfold::Stream stream = stream_;
    slots_.push_back(pool_.load(adapter, stream, std::span(&stream, 1)).value().slot);
  }
}

rankfold::AdapterPool ExpertDeltas::make_pool(const Config& config) {
  const auto num_targets = static_cast<std::size_t>(2 * config.num_layers);
  modules_.reserve(num_targets);  // the specs point into these
  keys_.reserve(num_targets);
  for (std::int64_t i = 0; i < config.num_layers; ++i) {
    const std::string path = "model.layers." + std::to_string(i) + ".mlp.experts.";
    for (const bool down : {false, true}) {
      modules_.push_back(path + (down ? "down_proj" : "gate_up_proj"));
      keys_.push_back("layers." + std::to_string(i) + (down ? ".down" : ".gate_up"));
      const char* const module = modules_.back().c_str();
      slices_.emplace_back();
      if (down) {
        slices_.back() = {{.module = module, .out = config.hidden}};
      } else {
        for (const std::int64_t begin : {std::int64_t{0}, config.inner})
          slices_.back().push_back({.module = module,
                                    .out = config.inner,
                                    .out_begin = begin,
                                    .out_full = 2 * config.inner});
      }
      targets_.push_back({.key = keys_.back().c_str(),
                          .kind = rankfold::TargetKind::experts,
                          .num_slices = static_cast<std::int32_t>(slices_.back().size()),
                          .slices = nullptr,
                          .in = down ? config.inner : config.hidden,
                          .num_experts = static_cast<std::int32_t>(config.num_experts)});
    }
  }
  for (std::size_t i = 0; i < num_targets; ++i) targets_[i].slices = slices_[i].data();
  const rankfold::PoolOptions options{
      .num_slots = 3,
      .max_rank = 4,
      .arena_bytes = 1 << 20,
      .a_dtype = rankfold::DType::f32,
      .b_dtype = rankfold::DType::f32,
      .x_dtype = rankfold::DType::f32,
      .y_dtype = rankfold::DType::f32,
  };
  return rankfold::AdapterPool::create(rankfold::backend(), targets_, options).value();
}

void ExpertDeltas::apply(std::int64_t layer, bool down, const Matrix& x,
                         const rankfold::ExpertAddressing& addressing, std::int64_t window,
                         Matrix& y) {
  rankfold::ApplyExpertsArgs args;
  args.x = rankfold::const_matrix(x.data(), x.rows(), x.cols());
  args.y = rankfold::matrix(y.data(), y.rows(), y.cols());
  args.table = pool_.table(static_cast<std::int32_t>(2 * layer + (down ? 1 : 0))).value();
  args.addressing = addressing;
  args.addressing.bound_rows = window;
  const std::int64_t step = window > 0 ? window : addressing.num_rows;
  rankfold::LoraBackend& backend = rankfold::backend();
  rankfold::Buffer workspace =
      rankfold::Buffer::create(
          backend, rankfold::workspace_bytes(backend, rankfold::make_problem(args)).value())
          .value();
  for (std::int64_t begin = 0; begin < addressing.num_rows; begin += step) {
    args.addressing.row_begin = begin;
    args.addressing.row_end = std::min(begin + step, addressing.num_rows);
    rankfold::throw_if_error(
        rankfold::apply_experts(backend, args, workspace.workspace(), stream_));
  }
  rankfold::throw_if_error(backend.synchronize(stream_));
}

}  // namespace moe
