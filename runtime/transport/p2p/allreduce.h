// Allreduce over messages between pairs of ranks, as plans.
//
// Both algorithms reduce each element in the order of the ranks, starting from
// the first, regardless of the element's position and of the number of
// elements. The bits of a result depend on nothing else.
//
// Called by PlanByMessages, on all ranks of the group with the same counts.
// Objects passed by reference must exist until the plan is finished. The
// operation of `options` must not be Average: see AverageAsSum.
#ifndef TF_HVD_RUNTIME_TRANSPORT_P2P_ALLREDUCE_H_
#define TF_HVD_RUNTIME_TRANSPORT_P2P_ALLREDUCE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/contract/operation.h"
#include "runtime/contract/rank_group.h"
#include "runtime/contract/spans.h"
#include "runtime/transport/p2p/plan.h"

namespace tf_hvd {

// Reduces `count` elements of inputs[0], inputs[1] and so on, in this order.
// `output` may be one of them.
void ReduceInOrder(const ReduceOptions& options,
                   std::vector<const char*> inputs, int64_t count, char* output,
                   P2PPlan* plan);

// This rank's input for a range: in place, or packed by the plan if it spans
// several spans.
const char* InputOf(const SpanList& spans, int64_t begin, int64_t count,
                    char* packed, P2PPlan* plan);

// One rank: scales and copies.
void ReduceAlone(const SpanList& spans, const ReduceOptions& options,
                 P2PPlan* plan);

// Every rank receives all inputs and reduces them itself: fewest messages.
void ReduceSmall(const RankGroup& group, const SpanList& spans,
                 const ReduceOptions& options, const Staging& staging,
                 P2PPlan* plan);

// In pieces. Each rank receives the others' inputs for its slice of a piece,
// reduces the slice, and sends the result to all of them. The slices of the
// next piece are in transit while one is reduced.
void ReduceLarge(const RankGroup& group, const SpanList& spans,
                 const ReduceOptions& options, const Staging& staging,
                 P2PPlan* plan);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_P2P_ALLREDUCE_H_
