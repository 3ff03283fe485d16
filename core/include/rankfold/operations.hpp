// The operations. Each validates its arguments without touching the device, refuses bad ones before
// anything is written, and then only enqueues work on the stream: nothing is allocated, nothing is
// synchronised, nothing is printed.
//
// All return ok, invalid_argument (an argument, what it is, what it should be), unsupported (with
// the backend's reason), workspace_too_small (have and need), or device_error. The texts of
// validation are the same on every backend. No status depends on device data.
//
// Numerics: float32 accumulation; y is widened to float32, the whole delta is added, and the sum is
// rounded once to y's dtype. Same inputs, backend, device, strategy and bounds: same bits.
#pragma once

#include <cstdint>

#include "rankfold/arguments.hpp"
#include "rankfold/backend.hpp"
#include "rankfold/problem.hpp"
#include "rankfold/status.hpp"

RANKFOLD_NAMESPACE_BEGIN

/// Which strategy the backend takes for the problem, or unsupported with the reason it declines.
/// Errors: invalid_argument (the problem itself), unsupported.
RANKFOLD_EXPORT Result<Strategy> supports(const LoraBackend& backend,
                                          const Problem& problem) noexcept;

/// The same with the configuration, and whether a tuning file (tuning.hpp) decided. For reports; no
/// operation needs it. Errors as supports().
RANKFOLD_EXPORT Result<Choice> choose(const LoraBackend& backend, const Problem& problem) noexcept;

/// Bytes of workspace that a call of this problem needs; monotone in every bound. A workspace sized
/// for upper bounds serves every smaller call. Errors as supports().
RANKFOLD_EXPORT Result<std::uint64_t> workspace_bytes(const LoraBackend& backend,
                                                      const Problem& problem) noexcept;

/// Groups rows by slot on the device: token_order holds the rows with 0 <= slot < num_slots by
/// ascending slot, stable; one segment per slot present, ascending. Fills args.memory and, on the
/// host and at once, *addressing (mode grouped) with pointers into it. Once a step, not once a
/// layer. Errors: invalid_argument, device_error; *addressing is written only when ok.
RANKFOLD_EXPORT Status group_tokens(LoraBackend& backend, const GroupTokensArgs& args,
                                    Stream stream, LoraAddressing* addressing) noexcept;

/// h = x A^T (ShrinkArgs: shapes, dtypes, what may be null). Rows without adapter and columns past
/// the rank of h are unspecified: nobody may read them.
RANKFOLD_EXPORT Status shrink(LoraBackend& backend, const ShrinkArgs& args,
                              const Workspace& workspace, Stream stream) noexcept;

/// y += f (h B^T + bias) (ExpandArgs), f = scaling * token_weight. Never reads h past the rank of
/// an entry, nor in rows without adapter.
RANKFOLD_EXPORT Status expand(LoraBackend& backend, const ExpandArgs& args,
                              const Workspace& workspace, Stream stream) noexcept;

/// y += f (x A^T B^T + bias) (ApplyLinearArgs); may be fused. LoRA: Hu et al., arXiv:2106.09685;
/// many adapters in one batch: Punica, arXiv:2310.18547.
RANKFOLD_EXPORT Status apply_linear(LoraBackend& backend, const ApplyLinearArgs& args,
                                    const Workspace& workspace, Stream stream) noexcept;

/// h[t] = A[:, ids[t]] (GatherShrinkArgs): the shrink of a token's one-hot. An id outside
/// [0, in_limit) contributes nothing.
RANKFOLD_EXPORT Status gather_shrink(LoraBackend& backend, const GatherShrinkArgs& args,
                                     const Workspace& workspace, Stream stream) noexcept;

/// y[t] += f A[:, ids[t]]^T B^T (ApplyEmbeddingArgs); gather_shrink, then expand without bias.
RANKFOLD_EXPORT Status apply_embedding(LoraBackend& backend, const ApplyEmbeddingArgs& args,
                                       const Workspace& workspace, Stream stream) noexcept;

/// h = x A^T by the (slot, expert) of a routed row (ShrinkExpertsArgs). This one and those below
/// are declared and validated; every backend of this version answers unsupported.
RANKFOLD_EXPORT Status shrink_experts(LoraBackend& backend, const ShrinkExpertsArgs& args,
                                      const Workspace& workspace, Stream stream) noexcept;
/// y += f h B^T by (slot, expert) (ExpandExpertsArgs), f = scaling * row_weight * token_weight.
RANKFOLD_EXPORT Status expand_experts(LoraBackend& backend, const ExpandExpertsArgs& args,
                                      const Workspace& workspace, Stream stream) noexcept;
/// y += f x A^T B^T by (slot, expert) (ApplyExpertsArgs); no bias.
RANKFOLD_EXPORT Status apply_experts(LoraBackend& backend, const ApplyExpertsArgs& args,
                                     const Workspace& workspace, Stream stream) noexcept;

/// apply_linear with dropout on x before A, which also returns h, unscaled (ForwardArgs).
RANKFOLD_EXPORT Status forward(LoraBackend& backend, const ForwardArgs& args,
                               const Workspace& workspace, Stream stream) noexcept;
/// ds = scaling * dy B; dx += ds A; dA = ds^T x; dB = scaling * dy^T h; dbias = scaling * sum of dy
/// (BackwardArgs: each output may be left out).
RANKFOLD_EXPORT Status backward(LoraBackend& backend, const BackwardArgs& args,
                                const Workspace& workspace, Stream stream) noexcept;
/// apply_embedding that also returns h (ForwardEmbeddingArgs).
RANKFOLD_EXPORT Status forward_embedding(LoraBackend& backend, const ForwardEmbeddingArgs& args,
                                         const Workspace& workspace, Stream stream) noexcept;
/// dA, columns by id in a fixed order, and dB (BackwardEmbeddingArgs); no dx, no dropout.
RANKFOLD_EXPORT Status backward_embedding(LoraBackend& backend, const BackwardEmbeddingArgs& args,
                                          const Workspace& workspace, Stream stream) noexcept;
/// backward by (slot, expert) (BackwardExpertsArgs).
RANKFOLD_EXPORT Status backward_experts(LoraBackend& backend, const BackwardExpertsArgs& args,
                                        const Workspace& workspace, Stream stream) noexcept;

/// Debug aid: copies the device arrays to the host, SYNCHRONISES the stream and reports the first
/// bad slot, row, offset, duplicate row or weight by name, index and value. Slots outside
/// [0, num_slots) other than -1 are reported too, although the operations skip them.
RANKFOLD_EXPORT Status check_addressing(LoraBackend& backend, const LoraAddressing& addressing,
                                        std::int32_t num_slots, Stream stream) noexcept;
/// The same for routed rows: the first bad offset, token, expert id, slot or weight.
RANKFOLD_EXPORT Status check_addressing(LoraBackend& backend, const ExpertAddressing& addressing,
                                        std::int32_t num_slots, std::int32_t num_experts,
                                        Stream stream) noexcept;
/// The same for embedding ids (int32 or int64): the first id outside [0, in).
RANKFOLD_EXPORT Status check_ids(LoraBackend& backend, const ConstTensorView& ids, std::int64_t in,
                                 Stream stream) noexcept;

RANKFOLD_NAMESPACE_END
