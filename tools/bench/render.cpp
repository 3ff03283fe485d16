#include "render.hpp"

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "command.hpp"
#include "figures.hpp"
#include "workloads.hpp"

namespace rankfold::tools {
namespace {

void write_text(const std::string& text, std::FILE* file) {
  if (std::fwrite(text.data(), 1, text.size(), file) != text.size() || std::fflush(file) != 0) {
    throw CommandError(kExitFailure,
                       fmt::format("the results could not be written: {}", std::strerror(errno)));
  }
}

// Whatever a results file calls its group, its figure lands in the directory.
std::string file_name(const std::string& group) {
  std::string name;
  for (const char c : group) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    name += plain ? c : '-';
  }
  return name + ".svg";
}

// What the writers read of a malformed document is an exception of the JSON library.
template <class Write>
void guarded(Write write) {
  try {
    write();
  } catch (const Json::exception& error) {
    throw CommandError(kExitRefused, fmt::format("no results of bench: {}", error.what()));
  }
}

}  // namespace

File open_output(const char* option, const std::string& path) {
  if (path.empty() || path == "-") return nullptr;
  File file(std::fopen(path.c_str(), "wb"));
  if (!file) {
    throw CommandError(kExitUsage, fmt::format("{}: {} cannot be written: {}", option, path,
                                               std::strerror(errno)));
  }
  return file;
}

std::vector<Json> read_results(const std::vector<std::string>& paths) {
  std::vector<Json> documents;
  for (const std::string& path : paths) {
    try {
      documents.push_back(Json::parse(read_text(path, "the results file")));
    } catch (const Json::exception& error) {
      throw CommandError(kExitRefused,
                         fmt::format("{}: no results of bench: {}", path, error.what()));
    }
  }
  return documents;
}

void write_markdown(const std::vector<Json>& documents, std::FILE* file) {
  guarded([&] {
    std::string text;
    for (const Json& document : documents) text += results_markdown(document);
    write_text(text, file);
  });
}

void write_figures(const std::vector<Json>& documents, const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  guarded([&] {
    for (const Json& document : documents) {
      for (const std::string& group : figure_groups(document)) {
        const std::string path = directory + "/" + file_name(group);
        const File file = open_output("--figures", path);
        write_text(figure_svg(document, group), file.get());
      }
    }
  });
}

}  // namespace rankfold::tools
