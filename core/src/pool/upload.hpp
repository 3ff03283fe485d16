// From a plan to bytes in the arena: conversion into the staging ring, copies, entries.
#pragma once

#include <cstddef>
#include <vector>

#include "pool/plan.hpp"
#include "pool/staging.hpp"
#include "rankfold/adapter_table.hpp"
#include "rankfold/backend.hpp"
#include "rankfold/export.hpp"
#include "rankfold/status.hpp"

RANKFOLD_NAMESPACE_BEGIN
namespace detail {

/// Converts all matrices through the ring and enqueues their copies; may wait for a chunk of it.
/// `offsets` as Placement has them. After an error copies may still be in flight.
/// Errors: invalid_argument (a finite weight overflows the table's dtype), device_error.
Status upload(const Plan& plan, const PoolLayout& layout, const std::vector<std::uint64_t>& offsets,
              std::byte* arena, StagingRing& ring, Stream stream);

/// Converts all matrices into host memory and makes the plan read them there.
/// Errors: invalid_argument as upload.
Status keep_on_host(Plan& plan, const PoolLayout& layout, std::vector<std::byte>& copy);

/// Writes all entries of a slot: those of the plan, and rank 0 for the rest.
void write_image(const Plan& plan, const PoolLayout& layout,
                 const std::vector<std::uint64_t>& offsets, const std::byte* arena,
                 AdapterEntry* image);

}  // namespace detail
RANKFOLD_NAMESPACE_END
