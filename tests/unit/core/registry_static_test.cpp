// A host that uses the library before main() and after it: from a static object's constructor and
// destructor. No doctest: what is checked runs outside main().
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "rankfold/rankfold.hpp"

namespace {

using namespace rankfold;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "registry_static_test: %s\n", what);
  std::_Exit(1);
}

// A fill on a stream and on the memory of the process's backend.
void use(Stream stream, const Buffer& buffer, std::uint8_t value) {
  LoraBackend& backend = rankfold::backend();
  require(backend.fill(buffer.data(), value, buffer.bytes(), stream).ok(), "fill");
  require(backend.synchronize(stream).ok(), "synchronize");
  std::uint8_t first = 0;
  std::memcpy(&first, buffer.data(), 1);
  require(first == value, "the fill did not run");
}

class Host {
 public:
  Host() {
    require(try_backend().ok(), "no backend before main()");
    for (const StreamMode mode : {StreamMode::inline_, StreamMode::worker}) {
      OwnedStream& stream = mode == StreamMode::inline_ ? inline_ : worker_;
      stream = OwnedStream::create(rankfold::backend(), mode).value();
    }
    buffer_ = Buffer::create(rankfold::backend(), 4096).value();
    use(worker_, buffer_, 1);
  }
  ~Host() {
    require(registry().list(nullptr, 0) > 0, "the registry has gone");
    use(inline_, buffer_, 2);
    use(worker_, buffer_, 3);
    // Without one of its own: a stream made and destroyed after main().
    use(OwnedStream::create(rankfold::backend(), StreamMode::worker).value(), buffer_, 4);
    std::puts("used after main()");
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  void run() const { use(worker_, buffer_, 5); }

 private:
  OwnedStream inline_, worker_;
  Buffer buffer_;
};

const Host host;

}  // namespace

int main() {
  host.run();
  return 0;
}
