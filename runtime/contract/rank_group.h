// RankGroup: the ranks that take part in one collective, and this rank's place.
#ifndef TF_HVD_RUNTIME_CONTRACT_RANK_GROUP_H_
#define TF_HVD_RUNTIME_CONTRACT_RANK_GROUP_H_

#include <cstddef>
#include <vector>

#include "base/status.h"
#include "runtime/contract/operation.h"

namespace tf_hvd {

// `ranks` must outlive the group. Places count from 0.
struct RankGroup {
  const std::vector<int>& ranks;
  size_t me;  // this rank's place

  size_t size() const { return ranks.size(); }
  // The place `steps` after or before mine, wrapping around.
  size_t Next(size_t steps) const { return (me + steps) % size(); }
  size_t Previous(size_t steps) const { return (me + size() - steps) % size(); }
};

// Finds the place of `rank` in an operation's set. A rank or root outside the
// set is a bug in the caller.
Status FindPlace(const OperationSpec& spec, int rank, size_t* place);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_CONTRACT_RANK_GROUP_H_
