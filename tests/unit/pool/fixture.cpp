#include "fixture.hpp"

#include <doctest/doctest.h>

#include <cstring>

#include "pool/arena.hpp"

namespace rankfold::testing {

namespace {

int small(std::uint32_t key) {
  key ^= key >> 16;
  key *= 0x7feb352du;
  key ^= key >> 15;
  key *= 0x846ca68bu;
  key ^= key >> 16;
  return static_cast<int>(key % 7u) - 3;
}

enum Part : std::uint32_t { kA, kB, kBias, kX, kId };

int weight(Part part, int id, std::int32_t target, std::int32_t slice, std::int64_t row,
           std::int64_t column) {
  std::uint32_t key = static_cast<std::uint32_t>(id) * 8u + part;
  for (const auto value : {std::int64_t{target}, std::int64_t{slice}, row, column}) {
    key = (key + 1u) * 0x9e3779b1u + static_cast<std::uint32_t>(value);
  }
  return small(key);
}

std::vector<std::byte> matrix_bytes(Part part, const AdapterSpec& spec, std::int32_t target,
                                    std::int32_t slice, std::int64_t rows, std::int64_t columns,
                                    DType dtype) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(rows * columns) * size_of(dtype));
  std::byte* at = bytes.data();
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column, at += size_of(dtype)) {
      const auto value = static_cast<float>(weight(part, spec.id, target, slice, row, column));
      if (dtype == DType::f32) {
        std::memcpy(at, &value, sizeof(value));
        continue;
      }
      const std::uint16_t narrow =
          dtype == DType::f16 ? to_half(value).bits : to_bfloat16(value).bits;
      std::memcpy(at, &narrow, sizeof(narrow));
    }
  }
  return bytes;
}

}  // namespace

SliceSpec slice(const char* module, std::int64_t out) {
  SliceSpec spec;
  spec.module = module;
  spec.out = out;
  return spec;
}

std::vector<TargetSpec> model_targets() {
  // Made at the first call: other files compute sizes before main().
  static const SliceSpec kQkvSlices[] = {slice("q", 8), slice("k", 4), slice("v", 4)};
  static const SliceSpec kDownSlices[] = {slice("down", 12)};
  static const SliceSpec kEmbedSlices[] = {slice("embed", 12)};
  std::vector<TargetSpec> targets(kNumTargets);
  targets[0].key = "qkv";
  targets[0].num_slices = 3;
  targets[0].slices = kQkvSlices;
  targets[0].in = 12;
  targets[1].key = "down";
  targets[1].num_slices = 1;
  targets[1].slices = kDownSlices;
  targets[1].in = 16;
  targets[2].key = "embed";
  targets[2].kind = TargetKind::embedding;
  targets[2].num_slices = 1;
  targets[2].slices = kEmbedSlices;
  targets[2].in = kVocabulary;
  return targets;
}

SyntheticAdapter::SyntheticAdapter(const AdapterSpec& spec) : spec_(spec) {
  const auto targets = model_targets();
  for (std::int32_t t = 0; t < kNumTargets; ++t) {
    if ((spec.targets & (1u << t)) == 0) continue;
    const bool embedding = targets[t].kind == TargetKind::embedding;
    const std::int64_t in = embedding ? spec.vocabulary : targets[t].in;
    for (std::int32_t i = 0; i < targets[t].num_slices; ++i) {
      const std::int64_t out = targets[t].slices[i].out;
      AdapterBinding binding;
      binding.target = t;
      binding.slice = i;
      binding.rank = spec.rank;
      binding.scaling = spec.scaling;
      storage_.push_back(matrix_bytes(kA, spec, t, i, spec.rank, in, spec.dtype));
      binding.a = const_matrix(storage_.back().data(), spec.dtype, spec.rank, in);
      storage_.push_back(matrix_bytes(kB, spec, t, i, out, spec.rank, spec.dtype));
      binding.b = const_matrix(storage_.back().data(), spec.dtype, out, spec.rank);
      if (spec.bias && !embedding) {
        storage_.push_back(matrix_bytes(kBias, spec, t, i, 1, out, spec.dtype));
        binding.bias = const_vector(storage_.back().data(), spec.dtype, out);
      }
      bindings_.push_back(binding);
    }
  }
}

void SyntheticAdapter::scramble() {
  for (auto& bytes : storage_) std::memset(bytes.data(), 0x7f, bytes.size());
}

PoolOptions small_options(std::int32_t num_slots, std::uint64_t arena_bytes) {
  PoolOptions options;
  options.num_slots = num_slots;
  options.max_rank = kMaxRank;
  options.arena_bytes = arena_bytes;
  options.staging_bytes = 4096;
  options.x_dtype = DType::f32;
  options.y_dtype = DType::f32;
  return options;
}

std::uint64_t arena_bytes_of(const AdapterSpec& spec, DType dtype) {
  std::uint64_t bytes = 0;
  const auto add = [&](std::int64_t rows, std::int64_t columns, DType of) {
    bytes += detail::round_to_unit(static_cast<std::uint64_t>(rows * columns) * size_of(of));
  };
  const auto targets = model_targets();
  for (std::int32_t t = 0; t < kNumTargets; ++t) {
    if ((spec.targets & (1u << t)) == 0) continue;
    const bool embedding = targets[t].kind == TargetKind::embedding;
    for (std::int32_t i = 0; i < targets[t].num_slices; ++i) {
      add(spec.rank, embedding ? spec.vocabulary : targets[t].in, dtype);
      add(targets[t].slices[i].out, spec.rank, dtype);
      if (spec.bias && !embedding) add(1, targets[t].slices[i].out, DType::f32);
    }
  }
  return bytes;
}

Step::Step(LoraBackend& backend, const AdapterPool& pool, std::vector<std::int32_t> token_slots,
           int seed)
    : backend_(backend), seed_(seed), token_slots_(std::move(token_slots)) {
  const std::size_t rows = token_slots_.size();
  for (std::int32_t t = 0; t < kNumTargets; ++t) {
    tables_[t] = pool.table(t).value();
    const TableShape& shape = tables_[t].shape;
    if (t == 2) {
      for (std::size_t row = 0; row < rows; ++row) ids_.push_back(id(row));
    } else {
      for (std::size_t row = 0; row < rows; ++row) {
        for (std::int64_t k = 0; k < shape.in; ++k) x_[t].push_back(x(t, row, k));
      }
    }
    y_[t].resize(rows * static_cast<std::size_t>(total_out(shape)));
    workspace_[t].resize(rows * static_cast<std::size_t>(shape.num_slices * shape.max_rank) + 4);
  }
  reset();
}

float Step::start(std::size_t row, std::int64_t column) const {
  return static_cast<float>(100 * static_cast<std::int64_t>(row) + column);
}

float Step::x(std::int32_t target, std::size_t row, std::int64_t k) const {
  return static_cast<float>(weight(kX, seed_, target, 0, static_cast<std::int64_t>(row), k));
}

std::int64_t Step::id(std::size_t row) const {
  const int value = weight(kId, seed_, 0, 0, static_cast<std::int64_t>(row), 0);
  return (value + 3) * 3;  // 0 to 18
}

void Step::reset() {
  for (std::int32_t t = 0; t < kNumTargets; ++t) {
    const std::int64_t columns = total_out(tables_[t].shape);
    for (std::size_t row = 0; row < token_slots_.size(); ++row) {
      for (std::int64_t o = 0; o < columns; ++o) {
        y_[t][row * static_cast<std::size_t>(columns) + static_cast<std::size_t>(o)] =
            start(row, o);
      }
    }
  }
}

Status Step::enqueue(Stream stream) {
  const auto rows = static_cast<std::int64_t>(token_slots_.size());
  const Device device = backend_.device();
  LoraAddressing addressing;
  addressing.num_tokens = rows;
  addressing.token_slots = token_slots_.data();
  addressing.device = device;
  for (std::int32_t t = 0; t < kNumTargets; ++t) {
    const TableShape& shape = tables_[t].shape;
    const TensorView y = matrix(y_[t].data(), rows, total_out(shape), device);
    auto* const scratch = reinterpret_cast<float*>(
        (reinterpret_cast<std::uintptr_t>(workspace_[t].data()) + 15) / 16 * 16);
    const Workspace workspace{scratch, (workspace_[t].size() - 4) * sizeof(float), device};
    Status status;
    if (t == 2) {
      ApplyEmbeddingArgs args;
      args.ids = const_vector(ids_.data(), rows, device);
      args.table = tables_[t];
      args.addressing = addressing;
      args.y = y;
      status = apply_embedding(backend_, args, workspace, stream);
    } else {
      ApplyLinearArgs args;
      args.x = const_matrix(x_[t].data(), rows, shape.in, device);
      args.table = tables_[t];
      args.addressing = addressing;
      args.y = y;
      status = apply_linear(backend_, args, workspace, stream);
    }
    if (!status.ok()) return status;
  }
  return {};
}

bool Step::row_is(std::size_t row, const AdapterSpec* adapter) const {
  for (std::int32_t t = 0; t < kNumTargets; ++t) {
    const TableShape& shape = tables_[t].shape;
    const bool has = adapter != nullptr && (adapter->targets & (1u << t)) != 0;
    std::int64_t column = 0;
    for (std::int32_t i = 0; i < shape.num_slices; ++i) {
      for (std::int64_t o = 0; o < shape.out[i]; ++o, ++column) {
        double want = start(row, column);
        if (has) {
          std::int64_t sum = adapter->bias && t != 2 ? weight(kBias, adapter->id, t, i, 0, o) : 0;
          for (std::int32_t j = 0; j < adapter->rank; ++j) {
            std::int64_t h = 0;
            if (t == 2) {
              if (id(row) < adapter->vocabulary) h = weight(kA, adapter->id, t, i, j, id(row));
            } else {
              for (std::int64_t k = 0; k < shape.in; ++k) {
                h += static_cast<std::int64_t>(x(t, row, k)) * weight(kA, adapter->id, t, i, j, k);
              }
            }
            sum += h * weight(kB, adapter->id, t, i, o, j);
          }
          want += static_cast<double>(adapter->scaling) * static_cast<double>(sum);
        }
        const std::size_t at =
            row * static_cast<std::size_t>(total_out(shape)) + static_cast<std::size_t>(column);
        if (static_cast<double>(y_[t][at]) != want) return false;
      }
    }
  }
  return true;
}

AdapterHandle load_ok(AdapterPool& pool, const AdapterSpec& spec, Stream upload, Stream step) {
  const SyntheticAdapter adapter(spec);
  const auto handle = pool.load(adapter.view(), upload, {&step, 1});
  INFO(handle.status().message());
  REQUIRE(handle.ok());
  return *handle;
}

}  // namespace rankfold::testing
