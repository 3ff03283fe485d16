#include "adapter/new_file.hpp"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "adapter/text.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

namespace {

namespace fs = std::filesystem;

Status cannot_write(const std::string& path, const std::string& why) {
  return Status(StatusCode::invalid_argument, "cannot write " + quote(path) + ": " + why);
}

// Beside `path`, hidden, and nobody else's.
std::string name_beside(const fs::path& path) {
  static std::atomic<unsigned> next{0};
  const std::string number = std::to_string(::getpid()) + "-" + std::to_string(next++);
  return (path.parent_path() / ("." + path.filename().string() + "." + number)).string();
}

}  // namespace

Result<NewFile> NewFile::create(const std::string& path) {
  std::error_code error;
  fs::path target(path);
  // The file that a link means is replaced, not the link.
  if (fs::is_symlink(target, error)) target = fs::weakly_canonical(target, error);
  if (!error && fs::exists(target, error) && !fs::is_regular_file(target, error)) {
    return cannot_write(path, "it is there already and not a regular file");
  }
  NewFile file;
  file.path_ = target.string();
  const std::string name = name_beside(target);
  file.file_ = std::fopen(name.c_str(), "wbx");
  if (file.file_ == nullptr) return cannot_write(path, std::strerror(errno));
  file.written_ = name;
  return file;
}

NewFile::NewFile(NewFile&& other) noexcept
    : path_(std::move(other.path_)),
      written_(std::exchange(other.written_, {})),
      previous_(std::exchange(other.previous_, {})),
      file_(std::exchange(other.file_, nullptr)),
      published_(std::exchange(other.published_, false)) {}

NewFile::~NewFile() {
  if (file_ != nullptr) std::fclose(file_);
  if (!written_.empty()) std::remove(written_.c_str());
  if (!previous_.empty()) {
    std::rename(previous_.c_str(), path_.c_str());  // replaces what was published
  } else if (published_) {
    std::remove(path_.c_str());
  }
}

Status NewFile::fail(const char* what, int number) const {
  return cannot_write(path_, std::string(what) + ": " + std::strerror(number));
}

Status NewFile::write(const void* data, std::size_t bytes) {
  if (bytes == 0 || std::fwrite(data, 1, bytes, file_) == bytes) return {};
  return fail("not all of it was written", errno);
}

Status NewFile::finish() {
  if (file_ == nullptr) return {};
  const bool ok = std::fclose(std::exchange(file_, nullptr)) == 0;
  return ok ? Status() : fail("not all of it was written", errno);
}

Status NewFile::set_aside() {
  std::error_code error;
  if (!fs::exists(path_, error)) return {};
  const std::string name = name_beside(path_);
  if (std::rename(path_.c_str(), name.c_str()) != 0) {
    return fail("the one that is there could not be moved", errno);
  }
  previous_ = name;
  return {};
}

Status NewFile::publish() {
  if (Status status = finish(); !status.ok()) return status;
  if (std::rename(written_.c_str(), path_.c_str()) != 0) {
    return fail("it could not take its name", errno);
  }
  written_.clear();
  published_ = true;
  return {};
}

void NewFile::settle() noexcept {
  if (!previous_.empty()) std::remove(previous_.c_str());
  previous_.clear();
  published_ = false;
}

Result<NewFolder> NewFolder::create(const std::string& path) {
  NewFolder folder;
  std::error_code error;
  std::vector<fs::path> missing;  // innermost first
  for (fs::path next = fs::absolute(path, error); !next.empty() && !fs::exists(next, error);
       next = next.parent_path()) {
    if (next.has_filename()) missing.push_back(next);  // "name/" has none behind its slash
  }
  for (auto next = missing.rbegin(); next != missing.rend(); ++next) {
    if (fs::create_directory(*next, error)) folder.made_.push_back(next->string());
    if (error) return cannot_write(path, error.message());
  }
  if (!fs::is_directory(path, error)) return cannot_write(path, "it is not a directory");
  return folder;
}

NewFolder::~NewFolder() {
  std::error_code error;
  for (auto next = made_.rbegin(); next != made_.rend(); ++next) fs::remove(*next, error);
}

}  // namespace detail
RANKFOLD_NAMESPACE_END
