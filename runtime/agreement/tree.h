// The tree of the counting-tree agreement (agreement.md, section 2): the first
// rank on a node is its leader and the parent of the node's other ranks; leader
// i's parent is leader (i - 1) / fan_out.
#ifndef TF_HVD_RUNTIME_AGREEMENT_TREE_H_
#define TF_HVD_RUNTIME_AGREEMENT_TREE_H_

#include <vector>

#include "runtime/contract/world.h"

namespace tf_hvd {

struct TreePlace {
  int parent = -1;  // -1: at the top
  std::vector<int> children;
  // below[i]: all ranks in the subtree of children[i], ascending.
  std::vector<std::vector<int>> below;
};

// The place of `rank` in the tree. Pure.
TreePlace PlaceOf(int rank, const std::vector<std::vector<int>>& nodes,
                  int fan_out = kFanOut);

// The controllers that a request of `rank` passes on its way up: its parent
// first, the coordinator of `members` last. Empty if `rank` is the coordinator.
// Pure.
std::vector<int> PathToCoordinator(int rank, const std::vector<int>& members,
                                   const std::vector<std::vector<int>>& nodes,
                                   int fan_out = kFanOut);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_AGREEMENT_TREE_H_
