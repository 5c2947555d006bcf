// Adasum over messages between pairs of ranks (Maleki and others, "Scaling
// Distributed Training with Adaptive Summation", MLSys 2021).
//
// Two vectors a and b become
//   (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b:
// their sum where they are orthogonal, their average where they are equal. More
// than two are combined pairwise in a binary tree over the places of the ranks;
// each span is a vector of its own.
//
// Called by PlanByMessages, on all ranks of the group with the same counts.
#ifndef TF_HVD_RUNTIME_TRANSPORT_P2P_ADASUM_H_
#define TF_HVD_RUNTIME_TRANSPORT_P2P_ADASUM_H_

#include "runtime/contract/operation.h"
#include "runtime/contract/rank_group.h"
#include "runtime/contract/spans.h"
#include "runtime/transport/p2p/allreduce.h"
#include "runtime/transport/p2p/plan.h"

namespace tf_hvd {

// For the floating types; half precisions are combined in float32. Scalar
// products are formed in float64, in an order that depends on the number of
// ranks alone. By recursive halving: each rank sends and receives twice the
// size of the spans. With a number of ranks that is no power of two, those
// beyond the last power of two first combine their vectors with those of the
// first ranks.
void ReduceAdasum(const RankGroup& group, const SpanList& spans,
                  const ReduceOptions& options, const Staging& staging,
                  P2PPlan* plan);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_P2P_ADASUM_H_
