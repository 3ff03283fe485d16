// The registry, each case in a process of its own: it resolves once a process, and the cases need
// other environments.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "fake_backend.hpp"
#include "rankfold/registry.hpp"
#include "registry_specification.hpp"

using namespace rankfold;
using testing::FakeBackend;

namespace {

// Runs the function in a child process with RANKFOLD_BACKEND set (null: unset), and returns what it
// returned. The test itself never touches the registry.
std::string in_child(const char* variable, const std::function<std::string()>& body) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    if (variable != nullptr) {
      setenv("RANKFOLD_BACKEND", variable, 1);
    } else {
      unsetenv("RANKFOLD_BACKEND");
    }
    const std::string text = body();
    const bool written = write(ends[1], text.data(), text.size()) == ssize_t(text.size());
    _exit(written ? 0 : 1);
  }
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t count; (count = read(ends[0], buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<std::size_t>(count));
  }
  close(ends[0]);
  int exit_status = 0;
  REQUIRE(waitpid(child, &exit_status, 0) == child);
  REQUIRE(WIFEXITED(exit_status));
  REQUIRE(WEXITSTATUS(exit_status) == 0);
  return text;
}

std::atomic<int> num_created{0};

Status create_fake(std::int32_t device, LoraBackend** backend) {
  ++num_created;
  *backend = new FakeBackend(device);
  return {};
}
void usable(BackendDescription* description) {
  description->usable = 1;
  description->num_devices = 1;
}
void accelerator(BackendDescription* description) {
  description->usable = 1;
  description->is_accelerator = 1;
  description->num_devices = 4;
}
void without_driver(BackendDescription* description) {
  description->is_accelerator = 1;
  std::snprintf(description->reason, sizeof(description->reason),
                "no driver was found: install the NVIDIA driver");
}

const BackendDescriptor kReference{"reference", kBackendInterfaceVersion, 0, usable, create_fake};
const BackendDescriptor kAccelerator{"gpu", kBackendInterfaceVersion, 100, accelerator,
                                     create_fake};
const BackendDescriptor kNoDriver{"cuda", kBackendInterfaceVersion, 100, without_driver,
                                  create_fake};

Registry& cpu_build() {
  Registry& registry = Registry::instance();
  (void)registry.add(kReference);
  (void)registry.add_missing({"cuda", "RANKFOLD_CUDA=ON", "no CUDA toolkit was found"});
  (void)registry.add_missing({"kokkos", "RANKFOLD_KOKKOS=ON", ""});
  return registry;
}

std::string describe(const Status& status) {
  return std::string(to_string(status.code())) + "|" + status.message();
}

// "name:device" as the fake knows it, or the status.
std::string describe(const Result<LoraBackend*>& result) {
  if (!result.ok()) return describe(result.status());
  return "ok|" + std::to_string((*result)->device().index);
}

std::string resolve(const char* variable) {
  return in_child(variable, [] { return describe(cpu_build().backend()); });
}

void check_contains(const std::string& text, const std::vector<std::string>& pieces) {
  CAPTURE(text);
  for (const std::string& piece : pieces) {
    CAPTURE(piece);
    CHECK(text.find(piece) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("empty, unset, auto, reference and cpu in any case give the reference") {
  for (const char* variable : {static_cast<const char*>(nullptr), "", "auto", "AUTO", "reference",
                               "Reference", "cpu", "CPU", "reference:0", "cpu:0", "CPU:00"}) {
    CHECK(resolve(variable) == "ok|0");
  }
}

TEST_CASE("malformed: quotes the grammar") {
  for (const char* variable :
       {"cuda:1x", "auto:1", "reference:", ":1", "reference:-1", "reference:+1", "reference: 1",
        " reference", "reference ", "reference:1:2", "1cuda", "ref/erence", "reference:0x1",
        "reference:99999999999", "reference:2147483648", "cuda:1.0"}) {
    const std::string text = resolve(variable);
    check_contains(
        text,
        {"invalid_argument|RANKFOLD_BACKEND is \"" + std::string(variable) + "\": malformed, ",
         "it should be empty or auto | NAME | NAME:DEVICE", "reference or cuda:1"});
  }
  check_contains(resolve("auto:1"), {"auto takes no device"});
  check_contains(resolve("reference:99999999999"), {"the index is over 2147483647"});
}

TEST_CASE("a value that cannot be printed as it is does not reach the text as it is") {
  const std::string long_value(500, 'a');
  check_contains(resolve(long_value.c_str()),
                 {"malformed, the name is too long", std::string(92, 'a') + "...\""});
  check_contains(resolve("a\x1b[31m"), {"is \"a?[31m\""});
}

TEST_CASE("unknown: lists what there is") {
  check_contains(resolve("doesnotexist"),
                 {"unknown_backend|RANKFOLD_BACKEND is \"doesnotexist\": ",
                  "there is no backend \"doesnotexist\"", "this build has: reference (alias cpu)",
                  "known but not in this build: cuda, kokkos", "unset the variable"});
  CHECK(resolve("doesnotexist").find("did you mean") == std::string::npos);
  check_contains(resolve("refrence"), {"unknown_backend|", "did you mean reference?"});
  check_contains(resolve("kudda:1"), {"unknown_backend|", "did you mean cuda?"});
}

TEST_CASE("known but not compiled: names the option") {
  check_contains(resolve("cuda"),
                 {"not_compiled|RANKFOLD_BACKEND is \"cuda\": the cuda backend is not in this "
                  "build: no CUDA toolkit was found; configure with -DRANKFOLD_CUDA=ON",
                  "unset the variable"});
  check_contains(resolve("Kokkos:1"), {"not_compiled|RANKFOLD_BACKEND is \"Kokkos:1\"",
                                       "not in this build; configure with -DRANKFOLD_KOKKOS=ON"});
}

TEST_CASE("compiled but unusable: a bad index, or the backend's reason") {
  check_contains(resolve("reference:7"),
                 {"unavailable|RANKFOLD_BACKEND is \"reference:7\": there is no device 7",
                  "the reference backend has 1 device here, index 0"});
  const auto with_gpus = [] {
    Registry& registry = Registry::instance();
    (void)registry.add(kAccelerator);
    (void)registry.add(kNoDriver);
    return describe(registry.backend());
  };
  check_contains(in_child("gpu:4", with_gpus),
                 {"unavailable|", "there is no device 4", "has 4 devices here, indices 0 to 3"});
  CHECK(in_child("gpu:3", with_gpus) == "ok|3");
  check_contains(in_child("cuda", with_gpus),
                 {"unavailable|RANKFOLD_BACKEND is \"cuda\": the cuda backend is in this build, "
                  "but cannot be used here: no driver was found: install the NVIDIA driver"});
}

TEST_CASE("an explicit wish never falls back, auto does") {
  const auto body = [] {
    (void)Registry::instance().add(kNoDriver);
    return describe(cpu_build().backend());
  };
  CHECK(in_child("auto", body) == "ok|0");
  CHECK(in_child("cuda", body).rfind("unavailable|", 0) == 0);
}

TEST_CASE("auto takes the accelerator of the highest priority, then reference") {
  const auto taken = [](std::vector<BackendDescriptor> more) {
    return in_child(nullptr, [more] {
      Registry& registry = cpu_build();
      for (const auto& descriptor : more) (void)registry.add(descriptor);
      std::vector<BackendListing> lines(8);
      const int count = registry.list(lines.data(), 8);
      std::string names;
      for (int i = 0; i < count; ++i) {
        if (lines[static_cast<std::size_t>(i)].taken_by_auto) {
          names += lines[static_cast<std::size_t>(i)].name;
        }
      }
      return names;
    });
  };
  CHECK(taken({}) == "reference");
  CHECK(taken({kNoDriver}) == "reference");
  CHECK(taken({kNoDriver, kAccelerator}) == "gpu");
  BackendDescriptor better = kAccelerator;
  better.name = "better";
  better.priority = 101;
  CHECK(taken({kAccelerator, better}) == "better");
  // Not an accelerator: never by auto while there is a reference.
  BackendDescriptor host = kReference;
  host.name = "host";
  host.priority = 1000;
  CHECK(taken({host}) == "reference");
}

TEST_CASE("list: best first, missing last, why each better one is passed over") {
  const std::string text = in_child("doesnotexist", [] {
    BackendDescriptor host = kReference;
    host.name = "host";
    host.priority = 200;
    Registry& registry = cpu_build();
    (void)registry.add(kNoDriver);
    (void)registry.add(host);
    std::vector<BackendListing> lines(3);
    const int count = registry.list(nullptr, 0);
    if (registry.list(lines.data(), 3) != count) return std::string("counts differ");
    lines.resize(static_cast<std::size_t>(count));
    registry.list(lines.data(), count);
    std::string all;
    for (const BackendListing& line : lines) {
      all += std::string(line.name) + (line.built ? " built" : " missing") +
             (line.description.usable ? " usable" : "") + " [" + line.description.reason + "]\n";
    }
    return all + std::to_string(num_created);
  });
  CHECK(text ==
        "host built usable [auto takes accelerators and reference alone; name host to use it]\n"
        "cuda built [no driver was found: install the NVIDIA driver]\n"
        "reference built usable []\n"
        "kokkos missing [not in this build; configure with -DRANKFOLD_KOKKOS=ON]\n"
        "0");
}

TEST_CASE("code beats the variable; a different choice after resolution is an error") {
  CHECK(in_child("doesnotexist", [] {
          Registry& registry = cpu_build();
          const Status chosen = registry.choose("CPU");
          return describe(chosen) + describe(registry.backend());
        }) == "ok|ok|0");
  const std::string text = in_child("reference", [] {
    Registry& registry = cpu_build();
    (void)registry.add(kAccelerator);
    (void)registry.backend();
    return describe(registry.choose("cpu:0")) + describe(registry.choose("gpu:1")) + "\n" +
           describe(registry.choose("auto")) + "\n" + describe(registry.choose("gpu:x")) + "\n" +
           describe(registry.backend());
  });
  check_contains(text,
                 {"ok|invalid_argument|the specification is \"gpu:1\": this process uses "
                  "reference:0 already, by RANKFOLD_BACKEND \"reference\"",
                  "invalid_argument|the specification is \"auto\": this process uses reference:0",
                  "the specification is \"gpu:x\": malformed", "\nok|0"});
}

TEST_CASE("a failed resolution can be mended by code") {
  CHECK(in_child("reference:7", [] {
          Registry& registry = cpu_build();
          const bool failed = !registry.backend().ok();
          const std::string unknown = describe(registry.choose("nosuch")).substr(0, 8);
          const std::string chosen = describe(registry.choose("reference"));
          return std::to_string(failed) + unknown + chosen + describe(registry.backend());
        }) == "1unknown_ok|ok|0");
}

TEST_CASE("get: one shared instance a name and device") {
  CHECK(in_child(nullptr, [] {
          Registry& registry = cpu_build();
          (void)registry.add(kAccelerator);
          LoraBackend* const first = *registry.get("gpu:1");
          const bool same = first == *registry.get("GPU:1") && first != *registry.get("gpu:2") &&
                            *registry.get("gpu") == *registry.backend() &&
                            *registry.get("cpu") == *registry.get("reference:0");
          return std::to_string(same) + std::to_string(num_created);
        }) == "14");
  check_contains(
      in_child(nullptr, [] { return describe(cpu_build().get("cuda")); }),
      {"not_compiled|the specification is \"cuda\"", "\"auto\" takes the best one here"});
}

TEST_CASE("a host's own backend is chosen by its name") {
  CHECK(in_child("mine:1", [] {
          BackendDescriptor mine = kAccelerator;
          mine.name = "mine";
          Registry& registry = cpu_build();
          const std::string added = describe(registry.add(mine));
          return added + describe(registry.backend());
        }) == "ok|ok|1");
}

TEST_CASE("add refuses names that the grammar cannot ask for, nulls, and other versions") {
  const auto add = [](const std::function<void(BackendDescriptor&)>& change) {
    return in_child(nullptr, [&] {
      BackendDescriptor descriptor = kAccelerator;
      change(descriptor);
      return describe(cpu_build().add(descriptor));
    });
  };
  using D = BackendDescriptor;
  CHECK(add([](D&) {}) == "ok|");
  const std::string long_name(64, 'x');
  for (const char* name : {"", "Gpu", "1gpu", "g-pu", "g:pu", long_name.c_str()}) {
    check_contains(add([&](D& d) { d.name = name; }),
                   {"invalid_argument|Registry::add: name is \"" + std::string(name) + "\"",
                    "should match [a-z][a-z0-9_]*"});
  }
  check_contains(add([](D& d) { d.name = nullptr; }), {"name is \"(null)\""});
  check_contains(add([](D& d) { d.name = "auto"; }), {"which RANKFOLD_BACKEND reserves"});
  check_contains(add([](D& d) { d.name = "cpu"; }), {"which RANKFOLD_BACKEND reserves"});
  check_contains(add([](D& d) { d.name = "reference"; }),
                 {"name is \"reference\", which is taken"});
  check_contains(add([](D& d) { d.describe = nullptr; }), {"describe of the gpu backend is null"});
  check_contains(add([](D& d) { d.create = nullptr; }), {"create of the gpu backend is null"});
  check_contains(add([](D& d) { d.interface_version = 17; }),
                 {"unsupported|Registry::add: the gpu backend was built against interface version "
                  "17; this library has version 3"});
}

TEST_CASE("a backend that throws, fails or returns nothing is an error that names it") {
  const auto open = [](Status (*create)(std::int32_t, LoraBackend**)) {
    return in_child("gpu:2", [=] {
      BackendDescriptor descriptor = kAccelerator;
      descriptor.create = create;
      (void)Registry::instance().add(descriptor);
      return describe(Registry::instance().backend());
    });
  };
  check_contains(
      open([](std::int32_t, LoraBackend**) -> Status { throw std::runtime_error("boom"); }),
      {"internal|RANKFOLD_BACKEND is \"gpu:2\": gpu:2 could not be opened: boom"});
  check_contains(open([](std::int32_t, LoraBackend**) -> Status {
                   return Status(StatusCode::out_of_memory, "no memory for a context");
                 }),
                 {"out_of_memory|", "could not be opened: no memory for a context"});
  check_contains(open([](std::int32_t, LoraBackend**) -> Status { return {}; }),
                 {"internal|", "returned ok and no backend"});
  check_contains(in_child("gpu",
                          [] {
                            BackendDescriptor descriptor = kAccelerator;
                            descriptor.describe = [](BackendDescription*) { throw 7; };
                            (void)Registry::instance().add(descriptor);
                            return describe(Registry::instance().backend());
                          }),
                 {"unavailable|", "asking it threw an exception"});
}

TEST_CASE("without any usable backend auto says so") {
  check_contains(in_child("",
                          [] {
                            (void)Registry::instance().add(kNoDriver);
                            return describe(Registry::instance().backend());
                          }),
                 {"unavailable|RANKFOLD_BACKEND is \"\", and none of the 1 backends",
                  "link rankfold::rankfold"});
}

TEST_CASE("the first use by many threads makes one backend") {
  CHECK(in_child("cpu", [] {
          Registry& registry = cpu_build();
          std::atomic<bool> go{false};
          std::vector<LoraBackend*> seen(16);
          std::vector<std::thread> threads;
          for (std::size_t i = 0; i < seen.size(); ++i) {
            threads.emplace_back([&, i] {
              while (!go) std::this_thread::yield();
              const auto backend = i % 2 == 0 ? registry.backend() : registry.get("reference");
              seen[i] = backend.ok() ? *backend : nullptr;
              BackendListing line;
              registry.list(&line, 1);
            });
          }
          go = true;
          for (auto& thread : threads) thread.join();
          for (const LoraBackend* backend : seen) {
            if (backend == nullptr || backend != seen[0]) return std::string("different backends");
          }
          return std::to_string(num_created);
        }) == "1");
}

TEST_CASE("edit distance") {
  using detail::edit_distance;
  CHECK(edit_distance("", "") == 0);
  CHECK(edit_distance("cuda", "cuda") == 0);
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("refrence", "reference") == 1);
  CHECK(edit_distance(std::string(70, 'a'), "a") > 3);
}
