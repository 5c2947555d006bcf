// Alltoall and reducescatter over messages between pairs of ranks, as plans.
// Each byte is sent once, directly to its destination.
//
// Called by PlanByMessages, on all ranks of the group with matching sizes.
#ifndef TF_HVD_RUNTIME_TRANSPORT_P2P_SCATTER_H_
#define TF_HVD_RUNTIME_TRANSPORT_P2P_SCATTER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/contract/operation.h"
#include "runtime/contract/rank_group.h"
#include "runtime/contract/spans.h"
#include "runtime/transport/p2p/allreduce.h"
#include "runtime/transport/p2p/plan.h"

namespace tf_hvd {

// Offsets have one more element than the group has ranks. The data for place i
// begins at `send_offsets[i]` of `input`, the data from there at
// `receive_offsets[i]` of `output`; in bytes.
void ExchangeAll(const RankGroup& group, const char* input,
                 const std::vector<size_t>& send_offsets, char* output,
                 const std::vector<size_t>& receive_offsets, P2PPlan* plan);

// Each rank receives its run, reduced in the order of the ranks. In pieces:
// while one is reduced the next is in transit. The operation must not be
// Average: see AverageAsSum. `runs` must exist until the plan is finished.
void ReduceScatterPieces(const RankGroup& group, const RankRuns& runs,
                         const ReduceOptions& options, const Staging& staging,
                         P2PPlan* plan);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_P2P_SCATTER_H_
