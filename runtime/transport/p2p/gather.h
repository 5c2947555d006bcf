// Allgather and broadcast over messages between pairs of ranks, as plans.
//
// Called by PlanByMessages, on all ranks of the group with the same sizes. What
// is given by reference stays until the plan has been gone through.
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
// best where the number of messages counts, not their length.
//
// Block j is what the rank at place Next(j) gives; `offsets` (size + 1 of
// them) says where it lies in `blocks`. Block 0, one's own, must be there.
void BruckGather(const RankGroup& group, const std::vector<size_t>& offsets,
                 char* blocks, P2PPlan* plan);

// Each rank's run goes to all, as short ones do best: by BruckGather.
void ShortGather(const RankGroup& group, const RankRuns& runs,
                 const Staging& staging, P2PPlan* plan);

// As long ones do best: a message between each pair for each span, straight to
// where it belongs. Many short spans of a group travel as one.
void DirectGather(const RankGroup& group, const RankRuns& runs,
                  const Staging& staging, P2PPlan* plan);

// The inputs of the rank at place `root` go to the outputs of all: in pieces
// down a binomial tree, or along a chain where there are enough pieces to keep
// all of it busy, with those of the `of_pieces` broadcasts alike of which this
// is one.
void BroadcastFrom(const RankGroup& group, size_t root, const SpanList& spans,
                   uint64_t of_pieces, const Staging& staging, P2PPlan* plan);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_P2P_GATHER_H_
