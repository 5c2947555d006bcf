// Adasum over messages between pairs of ranks (Maleki and others, "Scaling
// Distributed Training with Adaptive Summation", MLSys 2021).
//
// Two vectors a and b become
//   (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b:
// their sum if they are orthogonal, their average if they are equal. More than
// two are combined pairwise in a binary tree over the places of the ranks; each
// span is a separate vector.
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

// For the floating types; half-precision values are combined in float32. Scalar
// products are computed in float64, in an order that depends only on the number
// of ranks. Uses recursive halving: each rank sends and receives twice the size
// of the spans. If the number of ranks is not a power of two, the ranks beyond
// the last power of two first combine their vectors with those of the first
// ranks.
void ReduceAdasum(const RankGroup& group, const SpanList& spans,
                  const ReduceOptions& options, const Staging& staging,
                  P2PPlan* plan);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_P2P_ADASUM_H_
