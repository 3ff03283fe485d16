// A host that brings its own choice of backends: only the CPU backend, made by its descriptor.
#include <rankfold/reference.hpp>

#include <cstdio>
#include <memory>

int main() {
  rankfold::LoraBackend* made = nullptr;
  throw_if_error(rankfold::reference::descriptor().create(0, &made));
  const std::unique_ptr<rankfold::LoraBackend> backend(made);
  void* memory = backend->allocate(1000).value();
  const bool right = memory != nullptr && backend->device() == rankfold::Device{};
  backend->deallocate(memory);
  std::printf("%s: %s\n", backend->name(), right ? "right" : "WRONG");
  return right ? 0 : 1;
}
