// Allreduce over messages between pairs of ranks.
//
// Both ways reduce each element in the order of the ranks, starting from the
// first, wherever the element lies and however much is reduced with it: the
// bits of a result depend on nothing else.
//
// Called by P2PTransport, on all ranks of the group with the same counts. The
// operation of `options` must not be Average: see AverageAsSum.
#ifndef TF_HVD_RUNTIME_TRANSPORT_P2P_ALLREDUCE_H_
#define TF_HVD_RUNTIME_TRANSPORT_P2P_ALLREDUCE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/status.h"
#include "runtime/transport/data_transport.h"
#include "runtime/transport/flight.h"
#include "runtime/transport/rank_group.h"
#include "runtime/transport/span_list.h"

namespace tf_hvd {

// Gives memory of at least so many bytes that stays until the end of the call.
using Staging = std::function<char*(size_t bytes)>;

// An average as a sum that is divided by the number of ranks.
ReduceOptions AverageAsSum(const ReduceOptions& options, size_t ranks);

// Reduces `count` elements of inputs[0], inputs[1] and so on, in this order.
// `output` may be one of them.
Status ReduceInOrder(Flight* flight, const ReduceOptions& options,
                     const std::vector<const char*>& inputs, int64_t count,
                     char* output);

// One rank: scales and copies.
Status ReduceAlone(Flight* flight, const SpanList& spans,
                   const ReduceOptions& options);

// Every rank gets everything and reduces by itself: fewest messages.
Status ReduceSmall(Flight* flight, const RankGroup& group,
                   const SpanList& spans, const ReduceOptions& options,
                   const Staging& staging);

// In pieces. Each rank reduces its slice of a piece, of which the others send
// it theirs, and sends the result to all of them. The slices of the next piece
// are under way while one is reduced.
Status ReduceLarge(Flight* flight, const RankGroup& group,
                   const SpanList& spans, const ReduceOptions& options,
                   const Staging& staging);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_P2P_ALLREDUCE_H_
