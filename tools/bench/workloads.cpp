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

#include "arithmetic.hpp"
#include "command.hpp"

namespace rankfold::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMaxWidth = std::int64_t{1} << 31;
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 24;
constexpr std::int64_t kMaxRank = std::int64_t{1} << 16;
constexpr std::int64_t kMaxAdapters = std::int64_t{1} << 16;
constexpr std::int64_t kMaxTopK = 64;
constexpr std::int64_t kMaxRoutedRows = std::int64_t{1} << 20;
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

  bool flag(const char* key) const {
    const Json& value = at(key);
    if (!value.is_boolean()) {
      fail(fmt::format("\"{}\" is {}; it should be true or false", key, shown(value)));
    }
    return value.get<bool>();
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
  std::vector<std::pair<std::int64_t, std::int32_t>> runs;
  std::int64_t covered = 0;
  for (const Json& run : fields.array("token_adapter_rle")) {
    if (!run.is_array() || run.size() != 2) {
      fields.fail(fmt::format("\"token_adapter_rle\" holds {}; it should hold [count, adapter]",
                              Fields::shown(run)));
    }
    const std::int64_t count =
        fields.integer(run[0], "a count of \"token_adapter_rle\"", 0, kMaxTokens);
    const std::int64_t slot = fields.integer(run[1], "an adapter of \"token_adapter_rle\"", -1,
                                             std::int64_t{point.adapters} - 1);
    covered += count;
    if (covered > point.tokens) {
      fields.fail(fmt::format("\"token_adapter_rle\" covers {} tokens or more; \"tokens\" is {}",
                              covered, point.tokens));
    }
    runs.emplace_back(count, static_cast<std::int32_t>(slot));
  }
  if (covered != point.tokens) {
    fields.fail(fmt::format("\"token_adapter_rle\" covers {} tokens; \"tokens\" is {}", covered,
                            point.tokens));
  }
  point.token_slots = expand_runs(runs);
}

// What the file states must be what the point moves and computes, or the rates would be wrong.
void check_totals(const Fields& fields, const Workload& point) {
  const Totals totals = totals_of(point);
  if (totals.bytes != static_cast<double>(point.min_bytes)) {
    fields.fail(
        fmt::format("\"min_bytes\" is {}; the point moves {:.0f}", point.min_bytes, totals.bytes));
  }
  if (totals.flops != static_cast<double>(point.flops)) {
    fields.fail(fmt::format("\"flops\" is {}; the point takes {:.0f}", point.flops, totals.flops));
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

void read_train(const Fields& fields, Workload& point) {
  point.kind = Workload::Kind::train;
  point.tokens = fields.integer("M", 0, kMaxTokens);
  point.out = {fields.integer("N", 1, kMaxWidth)};
  const std::string pass = fields.text("pass");
  if (pass != "fwd" && pass != "bwd") {
    fields.fail(fmt::format("\"pass\" is \"{}\"; it should be fwd or bwd", printable(pass)));
  }
  point.backward = pass == "bwd";
  point.group = "train " + pass;
  point.token_slots.assign(static_cast<std::size_t>(point.tokens), 0);
}

void read_moe(const Fields& fields, Workload& point) {
  point.kind = Workload::Kind::moe;
  point.group = "moe";
  point.scale = 1.0f;
  point.experts = fields.small("experts", 1, 1 << 16);
  point.top_k = fields.small("top_k", 1, std::min<std::int64_t>(point.experts, kMaxTopK));
  if (point.tokens * point.top_k > kMaxRoutedRows) {
    fields.fail(fmt::format("\"tokens\" times \"top_k\" is {}; it should be at most {}",
                            point.tokens * point.top_k, kMaxRoutedRows));
  }
  const std::string x_rows = fields.text("x_rows");
  if (x_rows != "token" && x_rows != "own") {
    fields.fail(fmt::format("\"x_rows\" is \"{}\"; it should be token or own", printable(x_rows)));
  }
  point.x_rows = x_rows == "token" ? XRows::token : XRows::own;
  point.mul_routed_weight = fields.flag("mul_routed_weight");
  const std::int64_t seed = fields.integer("route_seed", 0, INT64_MAX);
  point.routing = draw_routing(static_cast<std::uint64_t>(seed), point.tokens, point.adapters,
                               point.experts, point.top_k);
  point.token_slots = point.routing.token_slots;
}

Workload read_point(const Json& object, const std::string& path, std::size_t index, float scale) {
  std::string where = fmt::format("{}: workloads[{}]", path, index);
  const Fields unnamed(object, where);
  Workload point;
  point.name = unnamed.text("name");
  point.scale = scale;
  const Fields fields(object, fmt::format("{} ({})", where, printable(point.name)));
  const std::string kind = fields.text("kind");
  point.in = fields.integer("K", 1, kMaxWidth);
  point.rank = fields.small("rank", 1, kMaxRank);
  point.min_bytes = fields.integer("min_bytes", 0, INT64_MAX);
  point.flops = fields.integer("flops", 0, INT64_MAX);
  if (kind == "train") {
    read_train(fields, point);
  } else {
    read_slices(fields, point);
    point.tokens = fields.integer("tokens", 0, kMaxTokens);
    point.adapters = fields.small("adapters", 1, kMaxAdapters);
    if (kind == "serve") {
      point.group = fields.text("phase");
      read_token_slots(fields, point);
    } else if (kind == "moe") {
      read_moe(fields, point);
    } else {
      fields.fail(
          fmt::format("\"kind\" is \"{}\"; it should be serve, moe or train", printable(kind)));
    }
  }
  check_totals(fields, point);
  return point;
}

}  // namespace

// A device or a pipe may never end.
std::string read_text(const std::string& path, const char* what) {
  const auto fail = [&](const char* why) {
    throw CommandError(kExitUsage, fmt::format("{}: {} cannot be read: {}", path, what, why));
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
      throw CommandError(kExitRefused, fmt::format("{}: {} has more than {}", path, what,
                                                   human_bytes(kMaxFileBytes)));
    }
  }
  if (std::ferror(file.get()) != 0) fail(std::strerror(errno));
  return text;
}

namespace {

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
  const Json document = parse(path, read_text(path, "the workloads file"));
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
  std::set<std::string> names;
  const Json& points = fields.array("workloads");
  for (std::size_t i = 0; i < points.size(); ++i) {
    workloads.points.push_back(read_point(points[i], path, i, static_cast<float>(value)));
    const std::string& name = workloads.points.back().name;
    if (!names.insert(name).second) {
      fields.fail(fmt::format("has two points named {}", printable(name)));
    }
  }
  return workloads;
}

std::string find_shared_file(const std::string& name) {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path installed = program.parent_path().parent_path() / "share" / "rankfold" / name;
  const fs::path local = fs::path("bench") / name;
  if (!error && fs::exists(installed, error)) return installed.string();
  if (fs::exists(local, error)) return local.string();
  return {};
}

std::string default_workloads_path() {
  std::string path = find_shared_file("workloads.json");
  if (!path.empty()) return path;
  throw CommandError(
      kExitUsage,
      "no workloads file: neither share/rankfold/workloads.json beside the folder of "
      "this command nor bench/workloads.json is there; name one with --workloads");
}

std::int64_t Workload::columns() const {
  return std::accumulate(out.begin(), out.end(), std::int64_t{0});
}

std::vector<BatchRow> batch_rows(const Workload& point) {
  std::vector<BatchRow> rows(static_cast<std::size_t>(point.rows()));
  SortedRows sorted;
  const bool moe = point.kind == Workload::Kind::moe;
  const bool by_expert = moe && point.sorted_by_expert();
  if (by_expert) sorted = sort_by_expert(point.routing.expert_ids, point.experts);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    BatchRow& row = rows[i];
    const std::size_t pair = by_expert ? static_cast<std::size_t>(sorted.order[i]) : i;
    row.token = static_cast<std::int64_t>(pair) / (moe ? point.top_k : 1);
    row.slot = point.token_slots[static_cast<std::size_t>(row.token)];
    row.x_row = moe && point.x_rows == XRows::token ? row.token : static_cast<std::int64_t>(i);
    if (!moe) continue;
    row.expert = point.routing.expert_ids[pair];
    if (point.mul_routed_weight) row.weight = point.routing.weights[pair];
  }
  return rows;
}

Totals totals_of(const Workload& point) {
  std::set<std::pair<std::int32_t, std::int32_t>> used;
  std::set<std::int64_t> x_rows;
  double active = 0;
  double products = 0;  // multiplications of one pass over A and B, all active rows
  const auto columns = static_cast<double>(point.columns());
  const double width =
      static_cast<double>(point.in) * static_cast<double>(point.out.size()) + columns;
  for (const BatchRow& row : batch_rows(point)) {
    if (row.slot < 0) continue;
    used.insert({row.slot, row.expert});
    x_rows.insert(row.x_row);
    active += 1;
    products += point.rank_of(row.slot) * width;
  }
  double weights = 0;
  for (const auto& [slot, expert] : used) weights += point.rank_of(slot) * width;
  const double element = point.x_dtype == DType::f32 ? 4 : 2;
  const double weight = point.weight_dtype == DType::f32 ? 4 : 2;
  const double x = static_cast<double>(x_rows.size()) * static_cast<double>(point.in);
  if (point.backward) {
    // dy and x once, dx read and written; the gradients and h count with the width of x, although
    // float32 is what moves: under a thousandth more.
    const double h = active * point.rank * static_cast<double>(point.out.size());
    return {weights * (weight + element) + element * (3 * x + active * columns + h), 4 * products};
  }
  return {weights * weight + element * (x + 2 * active * columns), 2 * products};
}

TableShape table_shape(const Workload& point) {
  TableShape shape;
  shape.num_slots = point.adapters;
  shape.num_experts = point.experts;
  shape.num_slices = static_cast<std::int32_t>(point.out.size());
  shape.max_rank = std::max(point.table_rank, point.rank);
  shape.in = point.in;
  std::copy(point.out.begin(), point.out.end(), shape.out);
  shape.a_dtype = point.weight_dtype;
  shape.b_dtype = point.weight_dtype;
  return shape;
}

}  // namespace rankfold::tools
