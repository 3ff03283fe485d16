// Adapters from files: a PEFT directory is opened, checked, and bound to a host's targets.
//
// Two steps: AdapterFile::open() reads and checks what does not depend on a model (rankfold inspect
// stops there); bind() finds the target, slice and expert of every tensor. Nothing is dropped
// silently: what is not bound stands in the report, or is the error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "rankfold/dtype.hpp"
#include "rankfold/export.hpp"
#include "rankfold/status.hpp"
#include "rankfold/target_spec.hpp"
#include "rankfold/tensor_view.hpp"

RANKFOLD_NAMESPACE_BEGIN

/// One adapted module of a file, as the file states it. Strings here and below are zero-terminated
/// UTF-8 and belong to the object that returned the struct.
struct AdapterModule {
  const char* path = "";          ///< stripped: "model.layers.0.self_attn.q_proj"
  std::int32_t is_embedding = 0;  ///< 1 or 0
  std::int32_t has_bias = 0;      ///< 1 or 0
  std::int64_t rank = 0;
  double alpha = 0;
  float scaling = 0;     ///< alpha / rank or alpha / sqrt(rank), in float32
  std::int64_t in = 0;   ///< columns of A
  std::int64_t out = 0;  ///< rows of B
  DType a_dtype = DType::f32;
  DType b_dtype = DType::f32;
  std::int64_t bytes = 0;  ///< of A, B and bias in the file
  /// 1: adapts a parameter, which may hold several experts (target_parameters); else 0.
  std::int32_t is_parameter = 0;
  /// Of a parameter: rows of A over the config's rank. 0: not known before it is bound, since the
  /// config means several parameters with different ranks or alphas; then `rank` counts the rows of
  /// A, and alpha and scaling are 0.
  std::int32_t num_experts = 1;
};

/// Something that a reader of a report should know.
struct Finding {
  enum class Severity : std::int32_t { note = 0, refused = 1 };
  Severity severity = Severity::note;
  StatusCode code = StatusCode::ok;  ///< refused: the code of the error
  const char* subject = "";          ///< config key, tensor or module
  const char* text = "";             ///< one sentence
};

/// What a caller allows that is an error otherwise.
struct AdapterOptions {
  /// Unbound tensors become a line of the report. Zero bound tensors are an error always.
  enum class Unbound : std::int32_t { refuse = 0, allow = 1 };
  Unbound unbound = Unbound::refuse;
  std::int32_t num_allowed_keys = 0;
  /// Unknown config keys whose value is to be ignored.
  const char* const* allowed_keys = nullptr;
};

/// One tensor of the file and what became of it.
struct TensorBinding {
  enum class Kind : std::int32_t { bound = 0, unbound = 1, base_copy = 2 };
  Kind kind = Kind::unbound;
  const char* tensor = "";  ///< name in the file
  const char* target = "";  ///< key of the target(s), "" when unbound
  const char* detail = "";  ///< "slice 1", "equal to the base", "not compared", why unbound
};

/// The weights of one (target, slice, expert). Views point into the adapter's own memory and may be
/// unaligned: read them by memcpy. A bound pair on a fused module appears once a slice, with the
/// same A.
struct AdapterBinding {
  std::int32_t target = 0;  ///< index into the targets that were bound
  std::int32_t slice = 0;
  std::int32_t expert = 0;
  std::int32_t rank = 0;
  float scaling = 0;          ///< with the target's delta_scale
  ConstTensorView a = {};     ///< [rank, in] any strides; embedding: [rank, in_limit]
  ConstTensorView b = {};     ///< [out, rank] any strides (experts: the expert index is fastest)
  ConstTensorView bias = {};  ///< [out] f32, f16 or bf16, or not given
};

/// An adapter bound to targets. Move-only; owns the file's bytes. Thread-safe to read.
class RANKFOLD_EXPORT Adapter {
 public:
  Adapter(Adapter&&) noexcept;
  Adapter& operator=(Adapter&&) noexcept;
  ~Adapter();

  std::span<const AdapterBinding> bindings() const noexcept;
  /// Every tensor of the file, in file order.
  std::span<const TensorBinding> report() const noexcept;
  /// Inert config keys, base copies that were not compared, and the like.
  std::span<const Finding> findings() const noexcept;
  /// Of the bound weights as the file stores them.
  std::int64_t weight_bytes() const noexcept;

 private:
  friend class AdapterFile;
  struct State;
  explicit Adapter(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

/// A PEFT adapter as its files state it, not bound to a model. Move-only.
class RANKFOLD_EXPORT AdapterFile {
 public:
  /// `path`: a directory with adapter_config.json and adapter_model.safetensors, or the safetensors
  /// file itself (its config is looked for beside it). Reads the whole file.
  /// Errors: invalid_argument (no such file), malformed_file: one of the two is not JSON or not
  /// safetensors at all. Everything else that is wrong or not supported, in a key, a tensor or
  /// between both, does not fail here but stands in findings() and status(), so that a report is
  /// complete.
  static Result<AdapterFile> open(std::string_view path, const AdapterOptions& options = {});
  /// The same from memory: the text of adapter_config.json and the bytes of the tensors, which are
  /// taken. `name` stands in the texts of errors.
  static Result<AdapterFile> parse(std::string_view config, std::vector<std::byte> tensors,
                                   std::string_view name, const AdapterOptions& options = {});

  AdapterFile(AdapterFile&&) noexcept;
  AdapterFile& operator=(AdapterFile&&) noexcept;
  ~AdapterFile();

  std::span<const AdapterModule> modules() const noexcept;
  std::span<const Finding> findings() const noexcept;
  /// ok, or the first refusal among the findings: what bind() will return.
  const Status& status() const noexcept;

  /// Binds every tensor; the file's bytes move into the adapter, which leaves this object empty,
  /// unless it fails. Errors: the refusal of status(); malformed_file or invalid_argument naming
  /// tensor, module and both shapes or ranks; unsupported naming the key.
  Result<Adapter> bind(std::span<const TargetSpec> targets) &&;

 private:
  struct State;
  explicit AdapterFile(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

/// AdapterFile::open(path, options), then bind(targets), with their errors.
RANKFOLD_EXPORT Result<Adapter> load_adapter(std::string_view path,
                                             std::span<const TargetSpec> targets,
                                             const AdapterOptions& options = {});

RANKFOLD_NAMESPACE_END
