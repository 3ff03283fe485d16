// A file that appears under its name complete, or not at all.
#pragma once

#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

#include "rankfold/status.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

/// Written under a name of its own in the same folder, then renamed. Without settle() the
/// destructor brings back what was there before. Every error: invalid_argument naming the path.
class NewFile {
 public:
  /// `path`: a regular file, a link to one, or nothing yet.
  static Result<NewFile> create(const std::string& path);
  NewFile(NewFile&& other) noexcept;
  NewFile& operator=(NewFile&&) = delete;
  ~NewFile();

  Status write(const void* data, std::size_t bytes);
  /// All of it has reached the file.
  Status finish();
  /// Moves what has the name now out of the way: readers find no file until publish().
  Status set_aside();
  /// finish(), then the file takes its name, at once.
  Status publish();
  /// The file stays; what was set aside goes.
  void settle() noexcept;

 private:
  NewFile() = default;
  Status fail(const char* what, int number) const;

  std::string path_;
  std::string written_;   // the name of its own; empty: published
  std::string previous_;  // where set_aside() moved it; empty: nowhere
  std::FILE* file_ = nullptr;
  bool published_ = false;
};

/// A folder and those above it, made where they are missing; the destructor removes what was made
/// unless keep() was called. Errors: invalid_argument naming the path.
class NewFolder {
 public:
  static Result<NewFolder> create(const std::string& path);
  NewFolder(NewFolder&& other) noexcept = default;
  NewFolder& operator=(NewFolder&&) = delete;
  ~NewFolder();
  void keep() noexcept { made_.clear(); }

 private:
  NewFolder() = default;
  std::vector<std::string> made_;  // outermost first
};

}  // namespace detail
RANKFOLD_NAMESPACE_END
