// Calls with bad arguments: what the files of refusals share.
#pragma once

#include <functional>
#include <string>
#include <variant>

#include "case.hpp"
#include "device_call.hpp"

namespace rankfold::conformance {

/// Makes one argument of a call wrong.
using Spoil = std::function<void(CallArguments&)>;

/// One spoiled call and how it must be refused.
struct Refusal {
  std::string name;
  StatusCode code;
  std::string mentions;  ///< what the text must name
  Spoil spoil;
};

/// The call that is spoiled.
CallSpec refusal_spec(Op op);

/// Adds the case: the code, a text that names the argument and the operation, and nothing written.
void add_refusal(CaseList& list, Op op, const Refusal& refusal);
/// A workspace that is one byte too small, and one that is null.
void add_workspace_refusal(CaseList& list, Op op);
/// Everything that may be wrong with a tensor of this name.
void add_tensor_refusals(CaseList& list, Op op, const std::string& name, DType bad_dtype);
/// Everything that may be wrong with the table (`entries` aside, and what the operation does not
/// forbid) and with the options.
void add_table_refusals(CaseList& list, Op op);
/// Everything that may be wrong with a LoraAddressing.
void add_addressing_refusals(CaseList& list, Op op);

/// Changes of a part of whatever argument struct it is.
template <class Change>
Spoil addressing(Change change) {
  return [change](CallArguments& call) {
    std::visit(
        [&](auto& args) {
          if constexpr (requires { change(args.addressing); }) change(args.addressing);
        },
        call.args);
  };
}

template <class Change>
Spoil table(Change change) {
  return [change](CallArguments& call) {
    std::visit(
        [&](auto& args) {
          if constexpr (requires { args.table; }) change(args.table);
        },
        call.args);
  };
}

template <class Change>
Spoil options(Change change) {
  return [change](CallArguments& call) {
    std::visit(
        [&](auto& args) {
          if constexpr (requires { args.options; }) change(args.options);
        },
        call.args);
  };
}

/// The tensor of this name.
template <class Change>
Spoil tensor(std::string name, Change change) {
  return [name, change](CallArguments& call) {
    std::visit(
        [&](auto& args) {
#define RANKFOLD_SPOIL(member)                \
  if constexpr (requires { args.member; }) {  \
    if (name == #member) change(args.member); \
  }
          RANKFOLD_SPOIL(x)
          RANKFOLD_SPOIL(ids)
          RANKFOLD_SPOIL(h)
          RANKFOLD_SPOIL(y)
          RANKFOLD_SPOIL(dy)
          RANKFOLD_SPOIL(dx)
          RANKFOLD_SPOIL(ds)
#undef RANKFOLD_SPOIL
        },
        call.args);
  };
}

template <class Pointer>
Pointer shifted(Pointer data, std::uintptr_t bytes) {
  return reinterpret_cast<Pointer>(reinterpret_cast<std::uintptr_t>(data) + bytes);
}

}  // namespace rankfold::conformance
