// RankGroup: the ranks that take part in one collective, seen from one of them.
#ifndef TF_HVD_RUNTIME_TRANSPORT_RANK_GROUP_H_
#define TF_HVD_RUNTIME_TRANSPORT_RANK_GROUP_H_

#include <cstddef>
#include <vector>

namespace tf_hvd {

// `ranks` is sorted and must outlive the group. Places count from 0.
struct RankGroup {
  const std::vector<int>& ranks;
  size_t me;  // this rank's place

  size_t size() const { return ranks.size(); }
  // The place `steps` behind or before mine, going round.
  size_t Next(size_t steps) const { return (me + steps) % size(); }
  size_t Previous(size_t steps) const { return (me + size() - steps) % size(); }
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_RANK_GROUP_H_
