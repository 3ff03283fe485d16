// How the parts of a case file are read: what the files of operations share.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "case_fields.hpp"
#include "case_file.hpp"

namespace rankfold::conformance {

inline constexpr std::int64_t kMaxSize = std::numeric_limits<std::int32_t>::max();
/// A small file must not ask for much more than itself: the most that a tensor of a replay has.
inline constexpr std::int64_t kMaxReplayBytes = std::int64_t{1} << 30;
/// Slots of group_tokens, and experts: a file names them without storing anything of theirs.
inline constexpr std::int64_t kMaxGroupedSlots = std::int64_t{1} << 22;
inline constexpr std::initializer_list<DType> kActivations = {DType::f32, DType::f16, DType::bf16};

std::string shape_text(const testing::HostTensor& tensor);
/// Fails where a tensor that is given has another shape.
void expect_shape(CaseFields& fields, const std::string& name, const testing::HostTensor& tensor,
                  std::vector<std::int64_t> sizes);

/// Fails where `tensor` of the replay, rows * columns elements, has over kMaxReplayBytes. `why`
/// begins the text: "attribute x is 3".
void check_replay(CaseFields& fields, std::int64_t rows, std::int64_t columns, std::size_t element,
                  const std::string& tensor, const std::string& why);
/// That strided tensors of the replay are not too large, and that a broadcast x, of which memory
/// holds one row, is stored with one row or with equal ones. After read_options() and all tensors.
void check_strides(CaseFields& fields, const testing::HostCall& call);
/// That a broadcast x has a row where `rows` rows read it.
void check_broadcast_row(CaseFields& fields, const testing::HostCall& call, std::int64_t rows);
/// That h, ds, the gradients of one slot and the list of rows are not too large.
void check_rows(CaseFields& fields, const testing::HostCall& call);

/// y_mode, strategy, batch_invariant, row strides.
void read_options(CaseFields& fields, testing::HostCall& call);
/// Slots of `rows` rows in the form that the file has, and token_weights.
void read_addressing(CaseFields& fields, testing::HostCall& call, std::int64_t rows);
/// float32 [count], or nothing.
std::vector<float> read_weights(CaseFields& fields, const std::string& name, std::int64_t count);
/// scalings and what is called by slot, expert and slice. `shape.in` 0: the columns of A.
void read_entries(CaseFields& fields, testing::HostCall& call);
/// An expectation of the exact value or of the output's own bits.
void read_expectation(CaseFields& fields, testing::HostCall& call, const std::string& name,
                      const testing::HostTensor& like);
/// An output that nothing has written: all NaN.
testing::HostTensor unwritten(DType dtype, std::vector<std::int64_t> sizes);

void read_experts_operation(CaseFields& fields, testing::HostCall& call);
void read_training_operation(CaseFields& fields, testing::HostCall& call);

}  // namespace rankfold::conformance
