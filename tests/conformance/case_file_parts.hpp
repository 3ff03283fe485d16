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
inline constexpr std::initializer_list<DType> kActivations = {DType::f32, DType::f16, DType::bf16};

std::string shape_text(const testing::HostTensor& tensor);
/// Fails where a tensor that is given has another shape.
void expect_shape(CaseFields& fields, const std::string& name, const testing::HostTensor& tensor,
                  std::vector<std::int64_t> sizes);
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
