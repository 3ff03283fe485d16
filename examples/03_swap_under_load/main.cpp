// Adapters come and go while steps run, and every row is checked. README.md tells the story;
// server.* is the serving loop, loader.* the other thread.
#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <thread>

#include "loader.hpp"
#include "options.hpp"
#include "report.hpp"
#include "server.hpp"

namespace {

using namespace swap_under_load;

// A thread that can be stopped, and whose exception comes back.
class Worker {
 public:
  template <class Body>
  explicit Worker(Body body)
      : thread_([this, body] {
          try {
            body(stop_);
          } catch (...) {
            error_ = std::current_exception();
            failed_ = true;
          }
        }) {}
  ~Worker() { join(); }
  bool failed() const { return failed_; }
  void finish() {
    join();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void join() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  std::atomic<bool> stop_ = false;
  std::atomic<bool> failed_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

rankfold::LoraBackend& choose_backend(const Options& options) {
  if (!options.backend.empty())
    rankfold::throw_if_error(rankfold::registry().choose(options.backend.c_str()));
  return rankfold::backend();
}

rankfold::PoolOptions pool_options(const Options& options) {
  rankfold::PoolOptions pool;
  pool.num_slots = options.num_slots;
  pool.max_rank = kMaxRank;
  // Ranks are 4 to 32: sometimes slots run out first, sometimes memory.
  pool.arena_bytes = largest_adapter() * static_cast<std::uint64_t>(options.num_slots + 1) / 2;
  pool.x_dtype = rankfold::DType::f32;
  pool.y_dtype = rankfold::DType::f32;
  return pool;
}

int run(const Options& options) {
  rankfold::LoraBackend& backend = choose_backend(options);
  auto pool = rankfold::AdapterPool::create(backend, targets(), pool_options(options)).value();
  Directory directory(options.num_adapters);
  Server server(backend, pool, directory, options.num_slots, options.seed);
  Loader loader(backend, pool, server.stream(), directory, options.num_adapters, options.seed);
  loader.fill();
  std::printf("backend %s, %d adapters, %d slots, arena of %.0f KiB\n", backend.name(),
              options.num_adapters, options.num_slots,
              static_cast<double>(pool.stats().arena_bytes) / (1 << 10));

  Part parts[2];  // without swapping, with
  LoadCounts before = loader.counts();
  print_heading();
  const auto watch = [&](Part& part, int first, int last, const Worker& worker) {
    for (int second = first; second < last && !worker.failed(); ++second) {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      const LoadCounts now = loader.counts();
      const Part line = make_part(server.take(), before, now);
      before = now;
      print_line(("second " + std::to_string(second + 1)).c_str(), line);
      part.add(line);
    }
  };
  const int calm = std::max(1, options.seconds / 4);
  Worker serving([&](const std::atomic<bool>& stop) { server.run(stop); });
  watch(parts[0], 0, calm, serving);
  {
    Worker loading([&](const std::atomic<bool>& stop) { loader.run(stop); });
    watch(parts[1], calm, options.seconds, serving);
    loading.finish();
  }
  serving.finish();
  parts[1].add(make_part(server.take(), before, loader.counts()));

  std::printf("\n");
  print_heading();
  print_line("calm", parts[0]);
  print_line("swapping", parts[1]);
  const std::int64_t num_wrong = parts[0].wrong_rows + parts[1].wrong_rows;
  const rankfold::PoolStats stats = pool.stats();
  std::printf("\n%lld rows checked, wrong rows: %lld; %lld adapters resident in %.0f KiB\n",
              static_cast<long long>(parts[0].rows + parts[1].rows),
              static_cast<long long>(num_wrong), static_cast<long long>(stats.num_resident),
              static_cast<double>(stats.arena_in_use) / (1 << 10));
  return num_wrong == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  int exit_code = 0;
  try {
    const std::optional<Options> options = parse_options(argc, argv, exit_code);
    return options ? run(*options) : exit_code;
  } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "swap_under_load: %s\n", error.what());
    return 2;
  }
}
