// Arbitrary text as adapter_config.json beside tensors that are right.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "expect.hpp"

namespace {

// Two linear modules of rank 2 and 3, in 2, out 1.
std::vector<std::byte> tensors() {
  const std::string header =
      R"({"model.layers.0.q_proj.lora_A.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
      R"("model.layers.0.q_proj.lora_B.weight":{"dtype":"F32","shape":[1,2],"data_offsets":[16,24]},)"
      R"("model.layers.1.k_proj.lora_A.weight":{"dtype":"F16","shape":[3,2],"data_offsets":[24,36]},)"
      R"("model.layers.1.k_proj.lora_B.weight":{"dtype":"F16","shape":[1,3],"data_offsets":[36,42]}})";
  std::vector<std::byte> bytes(8 + header.size() + 42);
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<std::byte>(header.size() >> (8 * i));
  for (std::size_t i = 0; i < header.size(); ++i) bytes[8 + i] = static_cast<std::byte>(header[i]);
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  auto file = rankfold::AdapterFile::parse(text, tensors(), "fuzz");
  if (!file.ok()) {
    fuzz::expect_refusal(file.status());
    return 0;
  }
  fuzz::expect_sound(*file);
  const rankfold::SliceSpec slices[] = {{.module = "model.layers.0.q_proj", .out = 1},
                                        {.module = "model.layers.1.k_proj", .out = 1}};
  const rankfold::TargetSpec target{.key = "t", .num_slices = 2, .slices = slices, .in = 2};
  const bool accepted = file->status().ok();
  const auto adapter = std::move(*file).bind({&target, 1});
  fuzz::expect(adapter.ok() == accepted, "what is accepted binds");
  if (adapter.ok()) fuzz::expect_sound(*adapter);
  return 0;
}
