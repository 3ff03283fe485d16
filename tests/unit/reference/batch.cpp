#include "batch.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

namespace rankfold::reference_test {

LoraBackend& device() {
  static LoraBackend* const instance = [] {
    LoraBackend* made = nullptr;
    throw_if_error(reference::descriptor().create(0, &made));
    return made;
  }();
  return *instance;
}

void Elements::resize(DType type, std::int64_t count) {
  dtype = type;
  bytes.assign(static_cast<std::size_t>(count) * size_of(type), std::byte{0});
}

void Elements::set(std::int64_t index, float value) {
  std::byte* const at = bytes.data() + static_cast<std::size_t>(index) * size_of(dtype);
  if (dtype == DType::f16) {
    const Half half = to_half(value);
    std::memcpy(at, &half, 2);
  } else if (dtype == DType::bf16) {
    const BFloat16 narrow = to_bfloat16(value);
    std::memcpy(at, &narrow, 2);
  } else {
    std::memcpy(at, &value, 4);
  }
}

double Elements::get(std::int64_t index) const {
  const std::byte* const at = bytes.data() + static_cast<std::size_t>(index) * size_of(dtype);
  Half half;
  BFloat16 narrow;
  float value;
  switch (dtype) {
    case DType::f16:
      std::memcpy(&half, at, 2);
      return to_float(half);
    case DType::bf16:
      std::memcpy(&narrow, at, 2);
      return to_float(narrow);
    default:
      std::memcpy(&value, at, 4);
      return value;
  }
}

Batch::Batch(const BatchSpec& given) : spec(given) {
  std::mt19937 random(spec.seed);
  const auto number = [&](int bound) {
    if (spec.integers) {
      return static_cast<float>(std::uniform_int_distribution<int>(-bound, bound)(random));
    }
    return std::uniform_real_distribution<float>(-1.0f, 1.0f)(random);
  };
  const auto fill = [&](Elements& elements, DType type, std::int64_t count, int bound) {
    elements.resize(type, count);
    for (std::int64_t i = 0; i < count; ++i) elements.set(i, number(bound));
  };
  fill(x, spec.x, spec.tokens * spec.in, 2);
  fill(y, spec.y, spec.tokens * out_columns(), 3);
  for (std::int64_t t = 0; t < spec.tokens; ++t) {
    slots.push_back(std::uniform_int_distribution<int>(-1, spec.slots)(random));
    weights.push_back(spec.integers ? (t % 2 == 0 ? 0.5f : 2.0f) : number(1));
    ids.push_back(std::uniform_int_distribution<int>(-2, static_cast<int>(spec.in) + 1)(random));
  }
  const auto slices = static_cast<std::int32_t>(spec.out.size());
  for (std::int32_t slot = 0; slot < spec.slots; ++slot) {
    for (std::int32_t slice = 0; slice < slices; ++slice) {
      const std::int32_t rank = slot == 0 && slice == 0
                                    ? spec.max_rank
                                    : std::uniform_int_distribution<int>(0, spec.max_rank)(random);
      const std::int64_t out = spec.out[static_cast<std::size_t>(slice)];
      fill(a.emplace_back(), spec.a, rank * spec.in, 2);
      fill(b.emplace_back(), spec.b, rank * out, 2);
      bias.emplace_back();
      for (std::int64_t c = 0; spec.bias && c < out; ++c) bias.back().push_back(number(3));
      AdapterEntry entry;
      entry.rank = rank;
      entry.scaling = spec.integers ? 0.25f * static_cast<float>(1 << (slot % 3)) : number(1);
      entry.a_row_stride = spec.in;
      entry.b_row_stride = rank;
      entry.in_limit = spec.in;
      entries.push_back(entry);
    }
  }
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].rank == 0) continue;
    entries[i].a = a[i].bytes.data();
    entries[i].b = b[i].bytes.data();
    entries[i].bias = spec.bias ? bias[i].data() : nullptr;
  }
}

std::int64_t Batch::out_columns() const {
  return std::accumulate(spec.out.begin(), spec.out.end(), std::int64_t{0});
}

TableShape Batch::shape() const {
  TableShape shape;
  shape.num_slots = spec.slots;
  shape.num_slices = static_cast<std::int32_t>(spec.out.size());
  shape.max_rank = spec.max_rank;
  shape.in = spec.in;
  std::copy(spec.out.begin(), spec.out.end(), shape.out);
  shape.a_dtype = spec.a;
  shape.b_dtype = spec.b;
  return shape;
}

AdapterTableView Batch::table() const {
  AdapterTableView view;
  view.shape = shape();
  view.entries = entries.data();
  view.slot_stride = view.shape.num_slices;
  return view;
}

LoraAddressing Batch::addressing() const {
  LoraAddressing addressing;
  addressing.num_tokens = spec.tokens;
  addressing.token_slots = slots.data();
  addressing.token_weights = spec.token_weights ? weights.data() : nullptr;
  return addressing;
}

ApplyLinearArgs Batch::linear(const Elements& into) {
  ApplyLinearArgs args;
  args.x = const_matrix(x.bytes.data(), spec.x, spec.tokens, spec.in);
  args.table = table();
  args.addressing = addressing();
  args.y = matrix(const_cast<std::byte*>(into.bytes.data()), spec.y, spec.tokens, out_columns());
  return args;
}

ApplyEmbeddingArgs Batch::embedding(const Elements& into) {
  ApplyEmbeddingArgs args;
  args.ids = const_vector(ids.data(), spec.tokens);
  args.table = table();
  args.addressing = addressing();
  args.y = matrix(const_cast<std::byte*>(into.bytes.data()), spec.y, spec.tokens, out_columns());
  return args;
}

std::vector<double> Batch::oracle_h(bool embedding) const {
  const auto slices = static_cast<std::int64_t>(spec.out.size());
  std::vector<double> h(static_cast<std::size_t>(spec.tokens * slices * spec.max_rank));
  for (std::int64_t t = 0; t < spec.tokens; ++t) {
    const std::int32_t slot = slots[static_cast<std::size_t>(t)];
    if (slot < 0 || slot >= spec.slots) continue;
    for (std::int64_t s = 0; s < slices; ++s) {
      const auto e = static_cast<std::size_t>(slot * slices + s);
      for (std::int64_t j = 0; j < entries[e].rank; ++j) {
        double sum = 0;
        if (embedding) {
          const std::int64_t id = ids[static_cast<std::size_t>(t)];
          if (id >= 0 && id < entries[e].in_limit) sum = a[e].get(j * spec.in + id);
        } else {
          for (std::int64_t k = 0; k < spec.in; ++k) {
            sum += x.get(t * spec.in + k) * a[e].get(j * spec.in + k);
          }
        }
        h[static_cast<std::size_t>((t * slices + s) * spec.max_rank + j)] = sum;
      }
    }
  }
  return h;
}

std::vector<double> Batch::oracle_y(YMode mode, bool embedding) const {
  const auto slices = static_cast<std::int64_t>(spec.out.size());
  const std::vector<double> h = oracle_h(embedding);
  std::vector<double> result(static_cast<std::size_t>(y.size()));
  for (std::int64_t t = 0; t < spec.tokens; ++t) {
    std::int64_t column = t * out_columns();
    const std::int32_t slot = slots[static_cast<std::size_t>(t)];
    for (std::int64_t s = 0; s < slices; ++s) {
      for (std::int64_t c = 0; c < spec.out[static_cast<std::size_t>(s)]; ++c, ++column) {
        double& value = result[static_cast<std::size_t>(column)];
        value = mode == YMode::overwrite ? 0.0 : y.get(column);
        if (slot < 0 || slot >= spec.slots) continue;
        const auto e = static_cast<std::size_t>(slot * slices + s);
        if (entries[e].rank == 0) continue;
        double sum = entries[e].bias != nullptr && !embedding
                         ? static_cast<double>(bias[e][static_cast<std::size_t>(c)])
                         : 0.0;
        for (std::int64_t j = 0; j < entries[e].rank; ++j) {
          sum += h[static_cast<std::size_t>((t * slices + s) * spec.max_rank + j)] *
                 b[e].get(c * entries[e].rank + j);
        }
        const double weight = spec.token_weights ? weights[static_cast<std::size_t>(t)] : 1.0;
        value += entries[e].scaling * weight * sum;
      }
    }
  }
  return result;
}

namespace {

template <class Args, class Operation>
Status run_on(const Args& args, StreamMode mode, Operation operation) {
  auto bytes = workspace_bytes(device(), make_problem(args));
  if (!bytes.ok()) return bytes.status();
  Buffer memory = Buffer::create(device(), *bytes).value();
  if (*bytes > 0) std::memset(memory.data(), 0xff, *bytes);  // every float is NaN
  OwnedStream stream = OwnedStream::create(device(), mode).value();
  if (Status status = operation(device(), args, memory.workspace(), stream.get()); !status.ok()) {
    return status;
  }
  return stream.synchronize();
}

double ulp(DType dtype, double value) {
  const int digits = dtype == DType::f16 ? 11 : 8;
  const int least = dtype == DType::f16 ? -14 : -126;
  const int exponent = value == 0.0 ? least : std::max(std::ilogb(value), least);
  return std::ldexp(1.0, exponent - digits + 1);
}

}  // namespace

Status run(const ApplyLinearArgs& args, StreamMode mode) {
  return run_on(args, mode, apply_linear);
}
Status run(const ApplyEmbeddingArgs& args, StreamMode mode) {
  return run_on(args, mode, apply_embedding);
}
Status run(const ShrinkArgs& args, StreamMode mode) { return run_on(args, mode, shrink); }
Status run(const ExpandArgs& args, StreamMode mode) { return run_on(args, mode, expand); }
Status run(const GatherShrinkArgs& args, StreamMode mode) {
  return run_on(args, mode, gather_shrink);
}

Status run(const ForwardArgs& args, StreamMode mode) { return run_on(args, mode, forward); }
Status run(const BackwardArgs& args, StreamMode mode) { return run_on(args, mode, backward); }
Status run(const ForwardEmbeddingArgs& args, StreamMode mode) {
  return run_on(args, mode, forward_embedding);
}
Status run(const BackwardEmbeddingArgs& args, StreamMode mode) {
  return run_on(args, mode, backward_embedding);
}

bool close(const Elements& got, const std::vector<double>& exact, const std::vector<double>& base) {
  double error = 0, delta = 0, size = 0, worst = 0;
  std::size_t beyond = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double difference = got.get(static_cast<std::int64_t>(i)) - exact[i];
    if (!(std::abs(difference) < std::numeric_limits<double>::infinity())) return false;
    error += difference * difference;
    delta += (exact[i] - base[i]) * (exact[i] - base[i]);
    size += exact[i] * exact[i];
    if (got.dtype == DType::f32) continue;
    const double ulps = std::abs(difference) / ulp(got.dtype, exact[i]);
    worst = std::max(worst, ulps);
    if (ulps > 1.0) ++beyond;
  }
  if (got.dtype == DType::f32) {
    return std::sqrt(error) <= 1e-5 * std::sqrt(delta) + std::ldexp(std::sqrt(size), -24);
  }
  return beyond <= std::max<std::size_t>(1, exact.size() / 1000) && worst < 1.5;
}

}  // namespace rankfold::reference_test
