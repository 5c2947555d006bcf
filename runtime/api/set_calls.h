// Calls that change process sets; each waits until all ranks have made it.
//
// Any thread except one that fires a completion; one call at a time on a rank.
#ifndef TF_HVD_RUNTIME_API_SET_CALLS_H_
#define TF_HVD_RUNTIME_API_SET_CALLS_H_

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "runtime/api/runtime.h"

namespace tf_hvd {

// Fails on all ranks unless they pass equal `sets`: each set's ranks, then
// kSetEnd.
Status AgreeOnSets(Runtime* runtime, std::vector<int32_t> sets);

// Adds a set of `ranks`, which are ascending. `number` stands for it in all
// calls and is never reused. Invalid ranks fail on all ranks.
Status AddSet(Runtime* runtime, std::vector<int32_t> ranks, int32_t* number);

Status RemoveSet(Runtime* runtime, int32_t number);

// The ranks' arguments, in the order of ranks: for sets that some ranks do not
// know yet.
Status GatherRanks(Runtime* runtime, const std::vector<int32_t>& mine,
                   std::vector<std::vector<int32_t>>* all);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_API_SET_CALLS_H_
