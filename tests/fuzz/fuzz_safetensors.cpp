// Arbitrary bytes as a safetensors file, and as the tensors of an adapter.
#include <cstdint>
#include <vector>

#include "expect.hpp"
#include "rankfold/safetensors.hpp"

using rankfold::AdapterFile;
using rankfold::Safetensors;

namespace {

std::vector<std::byte> bytes_of(const std::uint8_t* data, std::size_t size) {
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  return {begin, begin + size};
}

void read_tensors(const std::uint8_t* data, std::size_t size) {
  const auto file = Safetensors::parse(bytes_of(data, size), "fuzz");
  if (!file.ok()) return fuzz::expect_refusal(file.status());
  std::uint64_t total = 0;
  for (const rankfold::SafetensorsEntry& entry : file->entries()) {
    fuzz::touch(entry.data, entry.bytes);
    total += entry.bytes;
    fuzz::expect(file->find(entry.name) == &entry, "an entry is found by its name");
    fuzz::expect(entry.num_dims <= rankfold::kSafetensorsMaxDims, "at most 8 dimensions");
  }
  fuzz::expect(total < size, "the tensors fit into the file");
}

void bind_adapter(const std::uint8_t* data, std::size_t size, rankfold::AdapterOptions options) {
  auto file = AdapterFile::parse(
      R"({"peft_type":"LORA","r":1,"lora_alpha":2,"rank_pattern":{"k":2},"lora_bias":false})",
      bytes_of(data, size), "fuzz", options);
  if (!file.ok()) return fuzz::expect_refusal(file.status());
  fuzz::expect_sound(*file);
  const rankfold::SliceSpec slices[] = {{.module = "a.q", .out = 2}, {.module = "a.k", .out = 1}};
  const rankfold::SliceSpec embed{.module = "e", .out = 2};
  const rankfold::TargetSpec targets[] = {
      {.key = "qk", .num_slices = 2, .slices = slices, .in = 2, .fused_module = "a.qk"},
      {.key = "e",
       .kind = rankfold::TargetKind::embedding,
       .num_slices = 1,
       .slices = &embed,
       .in = 3}};
  const auto adapter = std::move(*file).bind(targets);
  if (!adapter.ok()) return fuzz::expect_refusal(adapter.status());
  fuzz::expect_sound(*adapter);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  read_tensors(data, size);
  bind_adapter(data, size, {});
  bind_adapter(data, size, {.unbound = rankfold::AdapterOptions::Unbound::allow});
  return 0;
}
