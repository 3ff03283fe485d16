#include "workloads.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <numeric>
#include <set>
#include <system_error>

#include "command.hpp"

namespace rankfold::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMaxWidth = std::int64_t{1} << 31;
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 24;
constexpr std::int64_t kMaxRank = std::int64_t{1} << 16;
constexpr std::int64_t kMaxAdapters = std::int64_t{1} << 16;
constexpr std::size_t kMaxFileBytes = std::size_t{64} << 20;
constexpr int kMaxDepth = 16;

// One JSON object and where it stands, so that every error names the place.
class Fields {
 public:
  Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object_.is_object()) fail("is not an object");
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw CommandError(kExitRefused, where_ + " " + what);
  }

  const Json& at(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) fail(fmt::format("has no \"{}\"", key));
    return *found;
  }

  std::int64_t integer(const Json& value, const std::string& what, std::int64_t low,
                       std::int64_t high) const {
    const bool fits = value.is_number_integer() &&
                      !(value.is_number_unsigned() &&
                        value.get<std::uint64_t>() > static_cast<std::uint64_t>(high));
    if (!fits || value.get<std::int64_t>() < low || value.get<std::int64_t>() > high) {
      fail(fmt::format("{} is {}; it should be an integer from {} to {}", what, shown(value), low,
                       high));
    }
    return value.get<std::int64_t>();
  }
  std::int64_t integer(const char* key, std::int64_t low, std::int64_t high) const {
    return integer(at(key), fmt::format("\"{}\"", key), low, high);
  }
  std::int32_t small(const char* key, std::int64_t low, std::int64_t high) const {
    return static_cast<std::int32_t>(integer(key, low, high));
  }

  std::string text(const char* key) const {
    const Json& value = at(key);
    if (!value.is_string()) fail(fmt::format("\"{}\" is {}; it should be text", key, shown(value)));
    return value.get<std::string>();
  }

  const Json& array(const char* key) const {
    const Json& value = at(key);
    if (!value.is_array()) {
      fail(fmt::format("\"{}\" is {}; it should be an array", key, shown(value)));
    }
    return value;
  }

  static std::string shown(const Json& value) {
    const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
    return text.size() <= 60 ? text : text.substr(0, 57) + "...";
  }

 private:
  const Json& object_;
  std::string where_;
};

void read_token_slots(const Fields& fields, Workload& point) {
  for (const Json& run : fields.array("token_adapter_rle")) {
    if (!run.is_array() || run.size() != 2) {
      fields.fail(fmt::format("\"token_adapter_rle\" holds {}; it should hold [count, adapter]",
                              Fields::shown(run)));
    }
    const std::int64_t count =
        fields.integer(run[0], "a count of \"token_adapter_rle\"", 0, kMaxTokens);
    const std::int64_t slot = fields.integer(run[1], "an adapter of \"token_adapter_rle\"", -1,
                                             std::int64_t{point.adapters} - 1);
    const std::int64_t covered = static_cast<std::int64_t>(point.token_slots.size()) + count;
    if (covered > point.tokens) {
      fields.fail(fmt::format("\"token_adapter_rle\" covers {} tokens or more; \"tokens\" is {}",
                              covered, point.tokens));
    }
    point.token_slots.resize(static_cast<std::size_t>(covered), static_cast<std::int32_t>(slot));
  }
  if (static_cast<std::int64_t>(point.token_slots.size()) != point.tokens) {
    fields.fail(fmt::format("\"token_adapter_rle\" covers {} tokens; \"tokens\" is {}",
                            point.token_slots.size(), point.tokens));
  }
}

std::int64_t sum_out(const Workload& point) {
  return std::accumulate(point.out.begin(), point.out.end(), std::int64_t{0});
}

// What the file states must be what the point moves and computes, or the rates would be wrong.
void check_serve_totals(const Fields& fields, const Workload& point) {
  const std::set<std::int32_t> slots(point.token_slots.begin(), point.token_slots.end());
  const double used = static_cast<double>(slots.size() - slots.count(-1));
  const double active = static_cast<double>(std::count_if(
      point.token_slots.begin(), point.token_slots.end(), [](int s) { return s >= 0; }));
  const double columns = static_cast<double>(sum_out(point));
  const double weights =
      static_cast<double>(point.rank) *
      (static_cast<double>(point.in) * static_cast<double>(point.out.size()) + columns);
  const double bytes =
      2 * (used * weights + active * (static_cast<double>(point.in) + 2 * columns));
  const double flops = 2 * active * weights;
  if (bytes != static_cast<double>(point.min_bytes)) {
    fields.fail(fmt::format("\"min_bytes\" is {}; the point moves {:.0f}", point.min_bytes, bytes));
  }
  if (flops != static_cast<double>(point.flops)) {
    fields.fail(fmt::format("\"flops\" is {}; the point takes {:.0f}", point.flops, flops));
  }
}

void read_slices(const Fields& fields, Workload& point) {
  const Json& slices = fields.array("slices");
  if (slices.empty() || slices.size() > static_cast<std::size_t>(kMaxSlices)) {
    fields.fail(fmt::format("\"slices\" has {} entries; it should have 1 to {}", slices.size(),
                            kMaxSlices));
  }
  for (const Json& width : slices) {
    point.out.push_back(fields.integer(width, "a width of \"slices\"", 1, kMaxWidth));
  }
}

Workload read_point(const Json& object, const std::string& path, std::size_t index) {
  std::string where = fmt::format("{}: workloads[{}]", path, index);
  const Fields unnamed(object, where);
  Workload point;
  point.name = unnamed.text("name");
  const Fields fields(object, fmt::format("{} ({})", where, printable(point.name)));
  const std::string kind = fields.text("kind");
  point.in = fields.integer("K", 1, kMaxWidth);
  point.rank = fields.small("rank", 1, kMaxRank);
  point.min_bytes = fields.integer("min_bytes", 0, INT64_MAX);
  point.flops = fields.integer("flops", 0, INT64_MAX);
  if (kind == "train") {
    point.kind = Workload::Kind::train;
    point.tokens = fields.integer("M", 0, kMaxTokens);
    point.out = {fields.integer("N", 1, kMaxWidth)};
    const std::string pass = fields.text("pass");
    if (pass != "fwd" && pass != "bwd") {
      fields.fail(fmt::format("\"pass\" is \"{}\"; it should be fwd or bwd", printable(pass)));
    }
    point.backward = pass == "bwd";
    return point;
  }
  read_slices(fields, point);
  point.tokens = fields.integer("tokens", 0, kMaxTokens);
  point.adapters = fields.small("adapters", 1, kMaxAdapters);
  if (kind == "serve") {
    read_token_slots(fields, point);
    check_serve_totals(fields, point);
  } else if (kind == "moe") {
    point.kind = Workload::Kind::moe;
    point.experts = fields.small("experts", 1, 1 << 16);
    point.top_k = fields.small("top_k", 1, point.experts);
    point.x_rows = fields.text("x_rows") == "token" ? XRows::token : XRows::own;
  } else {
    fields.fail(
        fmt::format("\"kind\" is \"{}\"; it should be serve, moe or train", printable(kind)));
  }
  return point;
}

// A device or a pipe may never end.
std::string read_text(const std::string& path) {
  const auto fail = [&](const char* why) {
    throw CommandError(kExitUsage,
                       fmt::format("{}: the workloads file cannot be read: {}", path, why));
  };
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  const std::unique_ptr<std::FILE, Close> file(std::fopen(path.c_str(), "rb"));
  if (!file) fail(std::strerror(errno));
  std::string text;
  char buffer[1 << 14];
  while (const std::size_t count = std::fread(buffer, 1, sizeof(buffer), file.get())) {
    text.append(buffer, count);
    if (text.size() > kMaxFileBytes) {
      throw CommandError(kExitRefused, fmt::format("{}: the workloads file has more than {}", path,
                                                   human_bytes(kMaxFileBytes)));
    }
  }
  if (std::ferror(file.get()) != 0) fail(std::strerror(errno));
  return text;
}

Json parse(const std::string& path, const std::string& text) {
  // Texts of errors show values, and showing them recurs.
  const auto check_depth = [&](int depth, Json::parse_event_t, const Json&) {
    if (depth <= kMaxDepth) return true;
    throw CommandError(kExitRefused,
                       fmt::format("{}: JSON nested deeper than {} levels", path, kMaxDepth));
  };
  try {
    return Json::parse(text, check_depth);
  } catch (const Json::parse_error& failure) {
    throw CommandError(kExitRefused, fmt::format("{}: not JSON at byte {}", path, failure.byte));
  } catch (const Json::out_of_range&) {
    throw CommandError(kExitRefused, fmt::format("{}: a number that overflows", path));
  }
}

}  // namespace

Workloads read_workloads(const std::string& path) {
  const Json document = parse(path, read_text(path));
  Workloads workloads;
  workloads.path = path;
  const Fields fields(document, path + ": the document");
  if (fields.integer("schema", 0, INT32_MAX) != 1) {
    fields.fail("has another \"schema\" than 1, the one that this version reads");
  }
  const std::string dtype = fields.text("dtype");
  if (dtype != "bf16") {
    fields.fail(fmt::format("has \"dtype\" \"{}\"; it should be bf16", printable(dtype)));
  }
  const Json& scale = fields.at("scale");
  const double value = scale.is_number() ? scale.get<double>() : 0.0;
  if (value == 0 || std::fabs(value) > std::numeric_limits<float>::max()) {
    fields.fail(
        fmt::format("has \"scale\" {}; it should be a number other than 0 that float32 holds",
                    Fields::shown(scale)));
  }
  workloads.scale = static_cast<float>(value);
  std::set<std::string> names;
  const Json& points = fields.array("workloads");
  for (std::size_t i = 0; i < points.size(); ++i) {
    workloads.points.push_back(read_point(points[i], path, i));
    const std::string& name = workloads.points.back().name;
    if (!names.insert(name).second) {
      fields.fail(fmt::format("has two points named {}", printable(name)));
    }
  }
  return workloads;
}

std::string default_workloads_path() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path installed =
      program.parent_path().parent_path() / "share" / "rankfold" / "workloads.json";
  const fs::path local = fs::path("bench") / "workloads.json";
  if (!error && fs::exists(installed, error)) return installed.string();
  if (fs::exists(local, error)) return local.string();
  throw CommandError(kExitUsage,
                     fmt::format("no workloads file: neither {} nor {} is there; name one with "
                                 "--workloads",
                                 installed.string(), local.string()));
}

TableShape table_shape(const Workload& point, DType dtype) {
  TableShape shape;
  shape.num_slots = point.adapters;
  shape.num_experts = point.experts;
  shape.num_slices = static_cast<std::int32_t>(point.out.size());
  shape.max_rank = point.rank;
  shape.in = point.in;
  std::copy(point.out.begin(), point.out.end(), shape.out);
  shape.a_dtype = dtype;
  shape.b_dtype = dtype;
  return shape;
}

Problem problem_of(const Workload& point, DType dtype) {
  constexpr std::int64_t kPrefillTokens = 1024;  // from here on rows come sorted by expert
  Problem problem;
  problem.shape = table_shape(point, dtype);
  problem.x_dtype = dtype;
  problem.y_dtype = dtype;
  problem.bounds.tokens = point.tokens;
  problem.bounds.rows = point.tokens * (point.kind == Workload::Kind::moe ? point.top_k : 1);
  problem.bounds.active_rows = problem.bounds.rows;
  problem.bounds.segments =
      std::min(problem.bounds.rows, std::int64_t{point.adapters} * std::int64_t{point.experts});
  switch (point.kind) {
    case Workload::Kind::serve:
      problem.op = Op::apply_linear;
      problem.addressing = AddressingMode::grouped;
      break;
    case Workload::Kind::moe:
      problem.op = Op::apply_experts;
      problem.expert_mode =
          point.tokens >= kPrefillTokens ? ExpertMode::grouped : ExpertMode::gather;
      problem.x_rows = point.x_rows;
      break;
    case Workload::Kind::train:
      problem.op = point.backward ? Op::backward : Op::forward;
      problem.addressing = AddressingMode::uniform;
      if (point.backward) problem.outputs = kOutputDx | kOutputDa | kOutputDb | kRecomputesH;
      break;
  }
  return problem;
}

}  // namespace rankfold::tools
