// One point in every way the backend has for it: calls of all layers, checked and timed.
#pragma once

#include <string>
#include <vector>

#include "cold_layers.hpp"
#include "device_timer.hpp"
#include "exact_check.hpp"
#include "machine.hpp"
#include "rankfold/memory.hpp"
#include "timing.hpp"
#include "yardsticks.hpp"

namespace rankfold::tools {

/// What all points of a run share.
struct Bench {
  LoraBackend& backend;
  Stream stream;
  DeviceTimer& timer;
  Patterns& patterns;
  MachineLimits limits;
  Yardsticks yardsticks;
};

/// The calls of all layers in turn, as a model runs them.
class Layers {
 public:
  /// Throws CommandError where the backend declines the options.
  Layers(Bench& bench, const ColdLayers& layers, const CallOptions& options);

  const Problem& problem() const { return problem_; }
  const Choice& choice() const { return choice_; }
  void apply(int layer) const;
  void apply_all() const;
  /// Median seconds that the caller spends in a call, the device left to itself.
  double host_seconds() const;

 private:
  Bench& bench_;
  std::vector<Call> calls_;
  Problem problem_;
  Choice choice_;
  Buffer workspace_;
};

/// The name of a choice's configuration, "" where the backend does not say.
std::string configuration_name(const LoraBackend& backend, Op op, const Choice& choice);

/// Applies the first and the last layer and compares. Empty: right.
std::string check_layers(Bench& bench, const ExactSamples& samples, const ColdLayers& cold,
                         const Layers& layers, int& checked_rows);

/// One configuration of one strategy.
struct Variant {
  std::string strategy;
  std::string configuration;
  CallOptions options;
  Timing time;
  std::string refusal;  ///< not empty: not timed
  bool wrong = false;   ///< refusal says in what
};

/// Every strategy and configuration of the operation. The configurations of a strategy whose first
/// one is declined, or takes more than `most_seconds` (0: any time), are left out.
std::vector<Variant> run_variants(Bench& bench, const ExactSamples& samples, ColdLayers& cold,
                                  Op op, double most_seconds = 0);

}  // namespace rankfold::tools
