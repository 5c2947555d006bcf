// Allgather and broadcast over messages between pairs of ranks, as plans.
//
// Called by PlanByMessages, on all ranks of the group with the same sizes.
// Objects passed by reference must exist until the plan is finished.
#ifndef TF_HVD_RUNTIME_TRANSPORT_P2P_GATHER_H_
#define TF_HVD_RUNTIME_TRANSPORT_P2P_GATHER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/contract/rank_group.h"
#include "runtime/contract/spans.h"
#include "runtime/transport/p2p/plan.h"

namespace tf_hvd {

// Gathers in ceil(log2(size)) steps (Bruck and others, "Efficient algorithms
// for all-to-all communications in multiport message-passing systems", 1997):
// best if the number of messages dominates the cost, not their length.
//
// Block j is the data of the rank at place Next(j); `offsets` (size + 1 of
// them) are the positions in `blocks`. Block 0, this rank's, must be filled in.
void BruckGather(const RankGroup& group, const std::vector<size_t>& offsets,
                 char* blocks, P2PPlan* plan);

// Sends each rank's run to all, by BruckGather; for short runs.
void ShortGather(const RankGroup& group, const RankRuns& runs,
                 const Staging& staging, P2PPlan* plan);

// The same for long runs: one message between each pair for each span, directly
// to its destination. Many short spans of a group are sent as one message.
void DirectGather(const RankGroup& group, const RankRuns& runs,
                  const Staging& staging, P2PPlan* plan);

// Copies the inputs of the rank at place `root` to the outputs of all ranks, in
// pieces. Uses a binomial tree, or a chain if there are enough pieces to keep
// the whole chain busy, counting all `of_pieces` equal broadcasts that this one
// belongs to.
void BroadcastFrom(const RankGroup& group, size_t root, const SpanList& spans,
                   uint64_t of_pieces, const Staging& staging, P2PPlan* plan);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_P2P_GATHER_H_
