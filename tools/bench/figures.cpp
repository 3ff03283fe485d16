#include "figures.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "command.hpp"

namespace rankfold::tools {
namespace {

// Layout in pixels.
constexpr double kWidth = 1120;
constexpr double kRight = 70;  // room for the last value
constexpr double kHead = 92;
constexpr double kOwnBar = 11;
constexpr double kPeerBar = 9;
constexpr double kGap = 10;

struct System {
  const char* prefix;  ///< of the names in the peers file
  const char* name;
  const char* colour;  ///< told apart by colour-blind readers, too (Okabe and Ito)
};
constexpr System kSystems[] = {
    {"vllm", "vLLM", "#e69f00"},       {"sgl", "SGLang", "#009e73"},
    {"punica", "Punica", "#cc79a7"},   {"nemo", "NeMo Automodel", "#d55e00"},
    {"unsloth", "Unsloth", "#56b4e9"}, {"peft", "PEFT", "#a6761d"},
    {"torch", "PyTorch", "#999999"},
};
constexpr const char* kOwnColour = "#0072b2";

const System* find_system(const std::string& name) {
  for (const System& system : kSystems) {
    if (name.rfind(system.prefix, 0) == 0) return &system;
  }
  return nullptr;
}

std::string escape(const std::string& text) {
  std::string escaped;
  for (const char c : printable(text)) {
    if (c == '<') {
      escaped += "&lt;";
    } else if (c == '&') {
      escaped += "&amp;";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

struct Bar {
  std::string name;
  double us = 0;
  std::string colour;
};
struct Line {
  std::string name;
  double floor = 0;
  double goal = 0;
  std::vector<Bar> bars;  ///< rankfold first
  double height() const { return kOwnBar + kPeerBar * static_cast<double>(bars.size() - 1) + kGap; }
};

std::vector<Line> lines_of(const Json& document, const std::string& group) {
  std::vector<Line> lines;
  for (const Json& point : document.at("points")) {
    if (point.at("outcome") != "timed" || point.at("group") != group) continue;
    Line line;
    line.name = point.at("name").get<std::string>();
    line.floor = point.contains("floor_us") ? point.at("floor_us").get<double>()
                                            : point.at("floor").at("median_us").get<double>();
    line.goal = point.value("goal_us", point.value("limit_us", 0.0));
    line.bars.push_back({"rankfold", point.at("time").at("median_us").get<double>(), kOwnColour});
    if (point.contains("peers_us")) {
      for (const auto& [name, us] : best_of_systems(point.at("peers_us"))) {
        const auto* const system =
            std::find_if(std::begin(kSystems), std::end(kSystems),
                         [n = name](const System& candidate) { return candidate.name == n; });
        line.bars.push_back({name, us, system->colour});
      }
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

// A logarithmic axis from a power of ten times 1, 2 or 5 to another.
class Axis {
 public:
  /// From `left` to `right` pixels.
  Axis(double least, double most, double left, double right) : left_(left), right_(right) {
    low_ = std::pow(10, std::floor(std::log10(least)));
    if (low_ * 5 <= least) {
      low_ *= 5;
    } else if (low_ * 2 <= least) {
      low_ *= 2;
    }
    high_ = std::max(most * 1.05, low_ * 4);
  }
  double x(double us) const {
    const double part = std::log(us / low_) / std::log(high_ / low_);
    return left_ + std::clamp(part, 0.0, 1.0) * (right_ - left_);
  }
  double left() const { return left_; }
  std::vector<double> ticks() const {
    std::vector<double> ticks;
    for (double decade = std::pow(10, std::floor(std::log10(low_))); decade <= high_;
         decade *= 10) {
      for (const double step : {1.0, 2.0, 5.0}) {
        const double tick = decade * step;
        if (tick >= low_ * 0.999 && tick <= high_) ticks.push_back(tick);
      }
    }
    return ticks;
  }

 private:
  double low_;
  double high_;
  double left_;
  double right_;
};

std::string value_text(double us) {
  return us < 100 ? fmt::format("{:.1f}", us) : fmt::format("{:.0f}", us);
}

void draw_line(std::string& svg, const Line& line, const Axis& axis, double top) {
  const double begin = axis.left();
  const double bottom = top + line.height() - kGap;
  svg += fmt::format(
      "<text x=\"{:.0f}\" y=\"{:.1f}\" text-anchor=\"end\" font-size=\"11\">{}</text>\n", begin - 8,
      top + 9.5, escape(line.name));
  double y = top;
  for (const Bar& bar : line.bars) {
    const bool own = &bar == &line.bars.front();
    const double height = own ? kOwnBar : kPeerBar;
    const double end = std::max(axis.x(bar.us), begin + 1);
    svg += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"><title>{} "
        "{} "
        "us</title></rect>\n",
        begin, y, end - begin, height - 1, bar.colour, bar.name, value_text(bar.us));
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"{}\"{}>{}</text>\n", end + 4,
                       y + height - 2, own ? 11 : 9, own ? " font-weight=\"bold\"" : "",
                       value_text(bar.us));
    y += height;
  }
  const auto mark = [&](double us, const char* colour, const char* dashes) {
    if (us <= 0) return;
    svg += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" stroke=\"{3}\" "
        "stroke-width=\"2\"{4}/>\n",
        axis.x(us), top - 3, bottom + 3, colour, dashes);
  };
  mark(line.floor, "#000000", "");
  mark(line.goal, "#d00000", " stroke-dasharray=\"3 2\"");
}

std::string legend(const std::vector<Line>& lines, bool off_grid) {
  std::string svg;
  double x = 16;
  const auto entry = [&](const std::string& mark, const std::string& text) {
    svg += fmt::format(
        "<g transform=\"translate({:.0f},58)\">{}<text x=\"20\" y=\"0\">{}</text></g>\n", x, mark,
        text);
    x += 34 + 6.6 * static_cast<double>(text.size());
  };
  const auto box = [](const char* colour) {
    return fmt::format("<rect x=\"0\" y=\"-9\" width=\"14\" height=\"10\" fill=\"{}\"/>", colour);
  };
  entry(box(kOwnColour), "rankfold");
  std::set<std::string> present;
  for (const Line& line : lines) {
    for (const Bar& bar : line.bars) present.insert(bar.name);
  }
  for (const System& system : kSystems) {
    if (present.count(system.name) != 0) entry(box(system.colour), system.name);
  }
  const auto stroke = [](const char* style) {
    return fmt::format("<line x1=\"7\" x2=\"7\" y1=\"-11\" y2=\"3\" stroke-width=\"2\" {}/>",
                       style);
  };
  entry(stroke("stroke=\"#000000\""), "floor");
  if (std::any_of(lines.begin(), lines.end(), [](const Line& line) { return line.goal > 0; })) {
    entry(stroke("stroke=\"#d00000\" stroke-dasharray=\"3 2\""), off_grid ? "limit" : "goal");
  }
  return svg;
}

}  // namespace

std::vector<std::pair<std::string, double>> best_of_systems(const Json& peers_us) {
  std::vector<std::pair<std::string, double>> best;
  for (const auto& [name, us] : peers_us.items()) {
    const System* const system = find_system(name);
    if (system == nullptr || !us.is_number()) continue;
    const auto found = std::find_if(best.begin(), best.end(),
                                    [&](const auto& entry) { return entry.first == system->name; });
    if (found == best.end()) {
      best.emplace_back(system->name, us.get<double>());
    } else {
      found->second = std::min(found->second, us.get<double>());
    }
  }
  std::stable_sort(best.begin(), best.end(),
                   [](const auto& a, const auto& b) { return a.second < b.second; });
  return best;
}

std::vector<std::string> figure_groups(const Json& document) {
  std::vector<std::string> groups;
  for (const Json& point : document.at("points")) {
    if (point.at("outcome") != "timed") continue;
    const auto group = point.at("group").get<std::string>();
    if (std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
  }
  return groups;
}

std::string figure_svg(const Json& document, const std::string& group) {
  const std::vector<Line> lines = lines_of(document, group);
  double height = kHead + 24;
  double least = 1e30;
  double most = 0;
  bool peers = false;
  std::size_t longest = 0;
  for (const Line& line : lines) {
    longest = std::max(longest, line.name.size());
    height += line.height();
    least = std::min(least, line.floor);
    most = std::max(most, line.goal);
    peers = peers || line.bars.size() > 1;
    for (const Bar& bar : line.bars) {
      least = std::min(least, bar.us);
      most = std::max(most, bar.us);
    }
  }
  const Axis axis(least, most, 28 + 6.2 * static_cast<double>(longest), kWidth - kRight);
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"Helvetica, Arial, sans-serif\" "
      "font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
      kWidth, height);
  const auto text = [&](const char* key) { return escape(document.value(key, std::string())); };
  svg += fmt::format(
      "<text x=\"16\" y=\"22\" font-size=\"16\" font-weight=\"bold\">{}: microseconds a layer, "
      "shorter is better</text>\n<text x=\"16\" y=\"39\" fill=\"#555555\">{}, {}",
      escape(group), text("device"), text("date").substr(0, 10));
  if (peers && document.contains("peers")) {
    const Json& head = document.at("peers");
    svg += fmt::format("; other systems: best setting of each on {}, {}",
                       escape(head.value("device", std::string())),
                       escape(head.value("date", std::string())));
  }
  svg += "; logarithmic</text>\n" + legend(lines, document.value("off_grid", false));
  for (const double tick : axis.ticks()) {
    svg += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.0f}\" y2=\"{2:.0f}\" stroke=\"#dddddd\"/>"
        "<text x=\"{0:.1f}\" y=\"{3:.0f}\" text-anchor=\"middle\" fill=\"#555555\">{4:g}</text>\n",
        axis.x(tick), kHead - 6, height - 16, kHead - 10, tick);
  }
  double top = kHead + 2;
  for (const Line& line : lines) {
    draw_line(svg, line, axis, top);
    top += line.height();
  }
  return svg + "</svg>\n";
}

}  // namespace rankfold::tools
