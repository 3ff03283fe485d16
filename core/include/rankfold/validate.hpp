// Device-free validation and shape functions: what the operations check before they enqueue, for
// hosts that plan a graph without a device (shape inference, a fake run).
#pragma once

#include <cstdint>

#include "rankfold/arguments.hpp"
#include "rankfold/export.hpp"
#include "rankfold/status.hpp"

RANKFOLD_NAMESPACE_BEGIN

/// Sizes of h and y for a batch of `rows`.
struct MatrixShape {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

/// [rows, num_slices * max_rank].
RANKFOLD_EXPORT MatrixShape h_shape(const TableShape& shape, std::int64_t rows) noexcept;
/// [rows, sum of out].
RANKFOLD_EXPORT MatrixShape y_shape(const TableShape& shape, std::int64_t rows) noexcept;

/// What is wrong with a table's shape by itself.
RANKFOLD_EXPORT Status validate(const TableShape& shape) noexcept;
/// What is wrong with an entry for a table of this shape (rank, strides, null, scaling not finite).
RANKFOLD_EXPORT Status validate(const AdapterEntry& entry, const TableShape& shape,
                                std::int32_t slice) noexcept;

/// ok, or the status that the operation of this name would return for a backend on `device`, before
/// workspace and support are looked at. Reads no device memory.
RANKFOLD_EXPORT Status validate(const GroupTokensArgs& args, Device device) noexcept;
RANKFOLD_EXPORT Status validate(const ShrinkArgs& args, Device device) noexcept;
RANKFOLD_EXPORT Status validate(const ExpandArgs& args, Device device) noexcept;
RANKFOLD_EXPORT Status validate(const ApplyLinearArgs& args, Device device) noexcept;
RANKFOLD_EXPORT Status validate(const GatherShrinkArgs& args, Device device) noexcept;
RANKFOLD_EXPORT Status validate(const ApplyEmbeddingArgs& args, Device device) noexcept;
RANKFOLD_EXPORT Status validate(const ShrinkExpertsArgs& args, Device device) noexcept;
RANKFOLD_EXPORT Status validate(const ExpandExpertsArgs& args, Device device) noexcept;
RANKFOLD_EXPORT Status validate(const ApplyExpertsArgs& args, Device device) noexcept;
RANKFOLD_EXPORT Status validate(const ForwardArgs& args, Device device) noexcept;
RANKFOLD_EXPORT Status validate(const BackwardArgs& args, Device device) noexcept;
RANKFOLD_EXPORT Status validate(const ForwardEmbeddingArgs& args, Device device) noexcept;
RANKFOLD_EXPORT Status validate(const BackwardEmbeddingArgs& args, Device device) noexcept;
RANKFOLD_EXPORT Status validate(const BackwardExpertsArgs& args, Device device) noexcept;

RANKFOLD_NAMESPACE_END
