// The operations of the fake backend as serial loops: run by a stream, so all data is read then.
#pragma once

#include "rankfold/arguments.hpp"

namespace rankfold::testing {

void run_group_tokens(const GroupTokensArgs& args, const LoraAddressing& grouped, void* scratch);
void run_shrink(const ConstTensorView& x, const AdapterTableView& table,
                const LoraAddressing& addressing, const TensorView& h);
void run_gather_shrink(const ConstTensorView& ids, const AdapterTableView& table,
                       const LoraAddressing& addressing, const TensorView& h);
void run_expand(const ConstTensorView& h, const AdapterTableView& table,
                const LoraAddressing& addressing, const TensorView& y, YMode mode);

}  // namespace rankfold::testing
