// RankGroup: the ranks that take part in one collective, seen from one of them.
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
  // The place `steps` behind or before mine, going round.
  size_t Next(size_t steps) const { return (me + steps) % size(); }
  size_t Previous(size_t steps) const { return (me + size() - steps) % size(); }
};

// The place of `rank` in the set of an operation. A rank, or a root, that is
// not there is a bug of the caller's.
Status FindPlace(const OperationSpec& spec, int rank, size_t* place);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_CONTRACT_RANK_GROUP_H_
