// What a model does once a step, before its layers: the rows' slots and experts on the device.
#pragma once

#include "rankfold/memory.hpp"
#include "rankfold/operations.hpp"
#include "workloads.hpp"

namespace rankfold::tools {

class Step {
 public:
  /// Throws CommandError.
  Step(LoraBackend& backend, Stream stream, const Workload& point);

  /// Of a serve or train point: uniform where one adapter serves all tokens, else grouped.
  const LoraAddressing& linear() const { return linear_; }
  /// Of a moe point: gathered rows, or rows sorted by expert on the host.
  const ExpertAddressing& experts() const { return experts_; }

  /// Whether the step needs group_tokens().
  bool groups() const { return linear_.mode == AddressingMode::grouped; }
  /// Enqueues group_tokens() again, with the same result.
  void group();

 private:
  template <class T>
  const T* upload(const std::vector<T>& values);
  void set_linear(const Workload& point);
  void set_experts(const Workload& point);

  LoraBackend& backend_;
  Stream stream_;
  std::vector<Buffer> arrays_;
  Buffer memory_;
  GroupTokensArgs args_;
  LoraAddressing linear_;
  ExpertAddressing experts_;
};

}  // namespace rankfold::tools
