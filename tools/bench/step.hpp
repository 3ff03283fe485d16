// What a model does once a step, before its layers: the rows' slots and experts on the device.
#pragma once

#include "rankfold/memory.hpp"
#include "rankfold/operations.hpp"
#include "workloads.hpp"

namespace rankfold::tools {

/// Whether all tokens of the point use one adapter.
bool serves_one_adapter(const Workload& point);

class Step {
 public:
  /// as_benched: uniform where one adapter serves all tokens, else grouped. tokens: the slots of
  /// tokens and no grouping.
  enum class Form { as_benched, tokens };
  /// Throws CommandError.
  Step(LoraBackend& backend, Stream stream, const Workload& point, Form form = Form::as_benched);

  /// Of a serve or train point.
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
  void set_linear(const Workload& point, Form form);
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
