// Results as tables in Markdown.
#include <algorithm>

#include "command.hpp"
#include "figures.hpp"

namespace rankfold::tools {
namespace {

// Names come from files, and a bar would end a cell.
std::string cell(const std::string& text) {
  std::string escaped;
  for (const char c : printable(text)) {
    if (c == '|') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string us(double value) {
  return value < 100 ? fmt::format("{:.2f}", value) : fmt::format("{:.1f}", value);
}

std::string head(const Json& document) {
  std::string text = fmt::format(
      "# {}: {}, {}\n\nrankfold {} `{}`, measured {}.\n\n",
      cell(document.value("device", std::string())),
      cell(document.value("workloads", std::string())),
      document.value("date", std::string()).substr(0, 10), document.value("version", std::string()),
      document.value("backend", std::string()), document.value("date", std::string()));
  text += "| | |\n|---|---|\n";
  for (const auto& [what, version] : document.at("versions").items()) {
    text += fmt::format("| {} | {} |\n", cell(what), cell(version.get<std::string>()));
  }
  text += fmt::format("| points | {} |\n", cell(document.value("workloads", std::string())));
  text += fmt::format("| copy bandwidth | {:.2f} TB/s |\n",
                      document.value("copy_gb_per_s", 0.0) / 1000);
  if (document.at("matrix_tflop_per_s").is_number()) {
    text += fmt::format("| matrix rate | {:.1f} TFLOP/s ({}) |\n",
                        document.at("matrix_tflop_per_s").get<double>(),
                        cell(document.value("matrix_source", std::string())));
  }
  if (document.contains("peers")) {
    text += fmt::format("| peers | {}, {} |\n",
                        cell(document.at("peers").value("device", std::string())),
                        cell(document.at("peers").value("date", std::string())));
  }
  if (!document.contains("cold_elementwise")) return text + "\n";
  std::string sizes = "| MiB moved |";
  std::string rule = "|---|";
  std::string times = "| us |";
  for (const Json& entry : document.at("cold_elementwise")) {
    sizes += fmt::format(" {:g} |", entry.at("mib").get<double>());
    rule += "---|";
    times += fmt::format(" {:.2f} |", entry.at("us").get<double>());
  }
  return text + "\nCold elementwise kernel, in the same run:\n\n" + sizes + "\n" + rule + "\n" +
         times + "\n\n";
}

struct Count {
  int timed = 0;
  int met = 0;
  int with_peer = 0;
  int ahead = 0;
  void add(const Json& point) {
    ++timed;
    met += point.value("meets_goal", point.value("within_limit", false)) ? 1 : 0;
    if (!point.contains("best_peer")) return;
    ++with_peer;
    ahead += point.value("ahead_of_peer", false) ? 1 : 0;
  }
};

std::string peer_cells(const Json& point) {
  if (!point.contains("best_peer")) return " - | - | - |";
  const Json& peer = point.at("best_peer");
  return fmt::format(" {} ({}) | {:.2f} | {} |", us(peer.at("us").get<double>()),
                     cell(peer.at("name").get<std::string>()), peer.at("times_floor").get<double>(),
                     point.value("ahead_of_peer", false) ? "yes" : "**no**");
}

std::string point_row(const Json& point, bool peers, bool in_order) {
  const Json& time = point.at("time");
  const double floor = point.contains("floor_us") ? point.at("floor_us").get<double>()
                                                  : point.at("floor").at("median_us").get<double>();
  std::string row = fmt::format(
      "| {} | {} | {} to {} | {} | {} | {:.2f} |", cell(point.at("name").get<std::string>()),
      us(time.at("median_us").get<double>()), us(time.at("p10_us").get<double>()),
      us(time.at("p90_us").get<double>()), us(point.at("bound_us").get<double>()), us(floor),
      point.at("times_floor").get<double>());
  if (in_order) {
    row += fmt::format(" {} |", point.contains("in_order")
                                    ? us(point.at("in_order").at("median_us").get<double>())
                                    : std::string("-"));
  }
  const double goal = point.value("goal_us", point.value("limit_us", 0.0));
  if (goal > 0) {
    const bool met = point.value("meets_goal", point.value("within_limit", false));
    row += fmt::format(" {} | {} |", us(goal), met ? "yes" : "**no**");
  } else {
    row += " - | - |";
  }
  if (peers) row += peer_cells(point);
  row += fmt::format(" {} | {} |", us(point.value("host_us", 0.0)),
                     cell(point.value("strategy", std::string())));
  return row + "\n";
}

std::string group_table(const Json& document, const std::string& group) {
  const bool peers = document.contains("peers") && !document.value("off_grid", false);
  const Json& points = document.at("points");
  const bool in_order = std::any_of(points.begin(), points.end(),
                                    [](const Json& point) { return point.contains("in_order"); });
  std::string text = fmt::format(
      "## {}\n\n| point | us | p10 to p90 | bound | floor | x floor |{} {} | met |", group,
      in_order ? " in order |" : "", document.value("off_grid", false) ? "limit" : "goal");
  std::string rule =
      in_order ? "|---|---|---|---|---|---|---|---|---|" : "|---|---|---|---|---|---|---|---|";
  if (peers) {
    text += " best peer | x its floor | ahead |";
    rule += "---|---|---|";
  }
  text += " host us | strategy |\n" + rule + "---|---|\n";
  Count count;
  for (const Json& point : document.at("points")) {
    if (point.at("outcome") != "timed" || point.at("group") != group) continue;
    count.add(point);
    text += point_row(point, peers, in_order);
  }
  text += fmt::format("\n{} of {} met", count.met, count.timed);
  if (count.with_peer > 0) {
    text += fmt::format("; {} of {} ahead of the best peer", count.ahead, count.with_peer);
  }
  return text + ".\n\n";
}

// The ten that are furthest from goal or limit.
std::string worst_table(const Json& document) {
  std::vector<std::pair<double, const Json*>> shares;
  for (const Json& point : document.at("points")) {
    const double goal = point.value("goal_us", point.value("limit_us", 0.0));
    if (goal > 0)
      shares.emplace_back(point.at("time").at("median_us").get<double>() / goal, &point);
  }
  if (shares.empty()) return {};
  std::stable_sort(shares.begin(), shares.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  if (shares.size() > 10) shares.resize(10);
  const char* const word = document.value("off_grid", false) ? "limit" : "goal";
  std::string text = fmt::format(
      "## The ten furthest from their {0}\n\n| point | us | {0} | time / {0} "
      "|\n|---|---|---|---|\n",
      word);
  for (const auto& [share, point] : shares) {
    text += fmt::format("| {} | {} | {} | {:.2f} |\n", cell(point->at("name").get<std::string>()),
                        us(point->at("time").at("median_us").get<double>()),
                        us(point->value("goal_us", point->value("limit_us", 0.0))), share);
  }
  return text + "\n";
}

std::string grouping_table(const Json& document) {
  std::string rows;
  for (const Json& point : document.at("points")) {
    if (!point.contains("group_tokens")) continue;
    const Json& time = point.at("group_tokens");
    rows += fmt::format("| {} | {} | {} to {} |\n", cell(point.at("name").get<std::string>()),
                        us(time.at("median_us").get<double>()), us(time.at("p10_us").get<double>()),
                        us(time.at("p90_us").get<double>()));
  }
  if (rows.empty() || document.value("off_grid", false)) return {};
  return "## group_tokens, once a step and not part of the times above\n\n| point | us | p10 to "
         "p90 |\n|---|---|---|\n" +
         rows + "\n";
}

std::string checks_table(const Json& document) {
  if (!document.contains("checks")) return {};
  std::string text =
      "## Further checks\n\n| check | measured | at most | met | |\n|---|---|---|---|---|\n";
  for (const Json& check : document.at("checks")) {
    const std::string note = check.contains("failure") ? check.at("failure").get<std::string>()
                                                       : check.at("what").get<std::string>();
    text +=
        fmt::format("| {} | {:.2f} | {:g} | {} | {} |\n", cell(check.at("name").get<std::string>()),
                    check.at("value").get<double>(), check.at("limit").get<double>(),
                    check.at("met").get<bool>() ? "yes" : "**no**", cell(note));
  }
  return text + "\n";
}

std::string not_timed(const Json& document) {
  std::string text;
  for (const Json& point : document.at("points")) {
    if (point.at("outcome") == "timed") continue;
    text += fmt::format("- {} {}: {}\n", cell(point.at("name").get<std::string>()),
                        point.at("outcome").get<std::string>(),
                        cell(point.value("reason", std::string())));
  }
  return text.empty() ? text : "## Not timed\n\n" + text + "\n";
}

}  // namespace

std::string results_markdown(const Json& document) {
  std::string text = head(document);
  for (const std::string& group : figure_groups(document)) text += group_table(document, group);
  return text + worst_table(document) + grouping_table(document) + checks_table(document) +
         not_timed(document);
}

}  // namespace rankfold::tools
