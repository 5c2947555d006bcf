// Allgather and broadcast over messages between pairs of ranks, as schedules.
//
// Written by P2PBackend, on all ranks of the group with the same sizes.
#ifndef TF_HVD_RUNTIME_TRANSPORT_P2P_GATHER_H_
#define TF_HVD_RUNTIME_TRANSPORT_P2P_GATHER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/transport/rank_group.h"
#include "runtime/transport/schedule.h"

namespace tf_hvd {

// Gathers in ceil(log2(size)) steps (Bruck and others, "Efficient algorithms
// for all-to-all communications in multiport message-passing systems", 1997):
// best where the number of messages counts, not their length.
//
// Block j is what the rank at place Next(j) gives; `offsets` (size + 1 of
// them) says where it lies in `blocks`. Block 0, one's own, must be there.
void BruckGather(const RankGroup& group, const std::vector<size_t>& offsets,
                 char* blocks, Schedule* schedule);

// Gathers by one message between each pair: each byte travels once, straight
// to where it belongs. Block i is what the rank at place i gives, at
// `offsets[i]` of `blocks`; `mine` is copied to its own block.
void DirectGather(const RankGroup& group, const void* mine,
                  const std::vector<size_t>& offsets, char* blocks,
                  Schedule* schedule);

// Sends `data` from the rank at place `root` to all: in pieces down a binomial
// tree, or along a chain where there are enough pieces to keep all of it busy,
// with those of the `of_pieces` broadcasts alike of which this is one.
void BroadcastFrom(const RankGroup& group, size_t root, char* data,
                   size_t bytes, uint64_t of_pieces, Schedule* schedule);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_P2P_GATHER_H_
