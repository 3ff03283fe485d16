// Figures and tables from results: what bench wrote as JSON, in this run or an earlier one.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "output.hpp"

namespace rankfold::tools {

/// The groups that the document's timed points belong to, in their order.
std::vector<std::string> figure_groups(const Json& document);
/// A figure of one group as an SVG document: times on a logarithmic axis, a bar for rankfold and
/// one for each other system's best, marks for the floor and the goal.
std::string figure_svg(const Json& document, const std::string& group);

/// The best of each system among a point's peers: {"vLLM", us}, fastest first.
std::vector<std::pair<std::string, double>> best_of_systems(const Json& peers_us);

/// Tables in Markdown: machine, yardsticks, a table a group, what was missed.
std::string results_markdown(const Json& document);

}  // namespace rankfold::tools
