#include <doctest/doctest.h>

#include "bench/figures.hpp"

using namespace rankfold::tools;

namespace {

Json results() {
  return Json::parse(R"({
    "version": "0.1.0", "date": "2026-11-30T12:00:00Z", "backend": "cuda:0", "device": "A GPU",
    "versions": {"driver": "1.2"}, "workloads": "w.json", "off_grid": false, "copy_gb_per_s": 4260.0,
    "matrix_tflop_per_s": 775.0, "matrix_source": "cuBLAS",
    "peers": {"device": "Another GPU", "date": "2026-11-29"},
    "cold_elementwise": [{"mib": 0.5, "us": 1.6}, {"mib": 1.0, "us": 2.0}],
    "points": [
      {"name": "decode/a|b<c>", "group": "decode", "outcome": "timed", "strategy": "grouped",
       "time": {"median_us": 3.5, "p10_us": 3.4, "p90_us": 3.6, "replays": 25}, "bound_us": 0.2,
       "floor_us": 1.6, "times_floor": 2.1875, "goal_us": 4.34, "meets_goal": true, "host_us": 5.0,
       "group_tokens": {"median_us": 4.0, "p10_us": 3.9, "p90_us": 4.1},
       "best_peer": {"name": "vllm_tuned", "us": 10.6, "times_floor": 6.3}, "ahead_of_peer": true,
       "peers_us": {"vllm": 14.3, "vllm_tuned": 10.6, "sgl_csgmv": 13.1, "torch_bmm": 25.0, "else": 1.0}},
      {"name": "decode/slow", "group": "decode", "outcome": "timed", "strategy": "general",
       "time": {"median_us": 400, "p10_us": 390, "p90_us": 410, "replays": 5}, "bound_us": 9,
       "floor_us": 10, "times_floor": 40, "goal_us": 14, "meets_goal": false, "host_us": 5.0},
      {"name": "moe/x", "group": "moe", "outcome": "failed", "reason": "wrong result"}],
    "checks": [{"name": "group_tokens", "what": "us", "value": 6.0, "limit": 5.0, "met": false}]})");
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("peers: the best of each system, fastest first; unknown names are left out") {
  const auto best = best_of_systems(results()["points"][0]["peers_us"]);
  REQUIRE(best.size() == 3);
  CHECK(best[0] == std::pair<std::string, double>{"vLLM", 10.6});
  CHECK(best[1] == std::pair<std::string, double>{"SGLang", 13.1});
  CHECK(best[2] == std::pair<std::string, double>{"PyTorch", 25.0});
}

TEST_CASE("figures: one a group with timed points, every bar and mark in it, names escaped") {
  const Json document = results();
  CHECK(figure_groups(document) == std::vector<std::string>{"decode"});
  const std::string svg = figure_svg(document, "decode");
  CHECK(svg.rfind("<svg", 0) == 0);
  CHECK(has(svg, "</svg>"));
  CHECK(has(svg, "decode/a|b&lt;c>"));
  CHECK(has(svg, "<title>rankfold 3.5 us</title>"));
  CHECK(has(svg, "<title>vLLM 10.6 us</title>"));
  CHECK(has(svg, "<title>rankfold 400 us</title>"));
  CHECK(has(svg, ">goal</text>"));
  CHECK(has(svg, "Another GPU"));
  CHECK_FALSE(has(svg, "nan"));
}

TEST_CASE("markdown: machine, floors, goals met and missed, the furthest first") {
  const std::string text = results_markdown(results());
  CHECK(text.rfind("# A GPU: w.json, 2026-11-30\n", 0) == 0);
  CHECK(has(text, "| driver | 1.2 |"));
  CHECK(has(text, "| copy bandwidth | 4.26 TB/s |"));
  CHECK(has(text, "| us | 1.60 | 2.00 |"));
  CHECK(has(text,
            "| decode/a\\|b<c> | 3.50 | 3.40 to 3.60 | 0.20 | 1.60 | 2.19 | 4.34 | yes | "
            "10.60 (vllm_tuned) | 6.30 | yes | 5.00 | grouped |"));
  CHECK(has(text, "1 of 2 met; 1 of 1 ahead of the best peer."));
  CHECK(has(text, "| decode/slow | 400.0 | 14.00 | 28.57 |\n| decode/a"));
  CHECK(has(text, "| group_tokens | 6.00 | 5 | **no** | us |"));
  CHECK(has(text, "- moe/x failed: wrong result"));
}
