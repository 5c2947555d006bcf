// Alltoall and reducescatter over messages between pairs of ranks: each byte
// travels once, straight to where it belongs. As plans.
//
// Called by PlanByMessages, on all ranks of the group with sizes that fit.
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

// Offsets have one element more than the group has ranks: what goes to place i
// begins at `send_offsets[i]` of `input`, what comes from there at
// `receive_offsets[i]` of `output`; in bytes.
void ExchangeAll(const RankGroup& group, const char* input,
                 const std::vector<size_t>& send_offsets, char* output,
                 const std::vector<size_t>& receive_offsets, P2PPlan* plan);

// Each rank gets its run, reduced in the order of the ranks. In pieces: while
// one is reduced the next is under way. The operation must not be Average: see
// AverageAsSum. `runs` stays until the plan has been gone through.
void ReduceScatterPieces(const RankGroup& group, const RankRuns& runs,
                         const ReduceOptions& options, const Staging& staging,
                         P2PPlan* plan);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_P2P_SCATTER_H_
