// rankfold_bench_cpu [serve | experts | training | all] [GiB of weights] [rounds a point]
#include <cstdio>
#include <cstdlib>
#include <string>

#include "groups.hpp"
#include "rankfold/reference.hpp"

using namespace rankfold;
using namespace rankfold::bench;

namespace {

void fill(BFloat16* values, std::size_t count) {
  std::uint32_t state = 12345;
  for (std::size_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    values[i] = to_bfloat16(static_cast<float>(state >> 8) * 0x1p-30f - 0x1p-7f);
  }
}

int run(const std::string& group, double gib, int rounds) {
  throw_if_error(Registry::instance().add(reference::descriptor()));
  LoraBackend& backend = *Registry::instance().get("reference").value();
  BackendDescription description;
  reference::descriptor().describe(&description);
  Buffer memory = Buffer::create(backend, static_cast<std::size_t>(gib * 0x1p30)).value();
  fill(memory.as<BFloat16>(), memory.bytes() / 2);
  const Machine machine{backend, {memory.as<std::byte>(), memory.bytes()}, num_threads(), rounds};
  std::printf("%s\n%s\n%d threads, medians of %d rounds\n", description.devices[0].name,
              description.detail, machine.threads, rounds);

  struct Group {
    const char* name;
    bool (*run)(const Machine&);
  };
  bool known = false;
  bool correct = true;
  for (const Group& each : {Group{"serve", serve}, {"experts", experts}, {"training", training}}) {
    if (group != "all" && group != each.name) continue;
    known = true;
    std::printf("\n");
    correct = each.run(machine) && correct;
  }
  if (!known) {
    std::fprintf(stderr, "rankfold_bench_cpu: no group %s; there are serve, experts, training\n",
                 group.c_str());
    return 2;
  }
  return correct ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? argv[1] : "all", argc > 2 ? std::atof(argv[2]) : 2.0,
               argc > 3 ? std::atoi(argv[3]) : 20);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rankfold_bench_cpu: %s\n", error.what());
    return 2;
  }
}
