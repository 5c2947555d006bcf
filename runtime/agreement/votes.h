// Votes: the count at one place in the tree. Holds a tally for each request
// that some children have voted for, reports complete ones, which are then
// passed on, and remembers those passed to the parent.
//
// A child that has joined counts as having voted for everything, and so does
// one without members. This rank also counts as one of the children.
//
// Sends nothing, and treats no name specially except join's. Owned by the
// holder of the progress lock.
#ifndef TF_HVD_RUNTIME_AGREEMENT_VOTES_H_
#define TF_HVD_RUNTIME_AGREEMENT_VOTES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "runtime/agreement/decision.h"
#include "runtime/agreement/process_set.h"
#include "runtime/request/request.h"

namespace tf_hvd {

// A request that all members in the subtree have submitted, and their merged
// vote.
struct CompleteVote {
  Key key;
  Vote vote;
};

class Votes {
 public:
  // Counts a vote of `child`. Returns the requests that it completes, in the
  // order in which to pass them on; nullopt if the child has already voted for
  // this one, which is a bug. Requests that are not coordinated here count as
  // passed up.
  [[nodiscard]] std::optional<std::vector<CompleteVote>> Count(
      const ProcessSet& set, int child, const Key& key, const Vote& vote);

  // The request has been ordered: its next instance may be voted for.
  void Ordered(const Key& key);

  // The set has been removed.
  void DropSet(int32_t set);
  // The runtime has ended.
  void Clear();

  // True if nothing is being counted and no batch is awaited.
  bool empty() const { return tallies_.empty() && passed_up_.empty(); }
  // True if this rank takes part in votes for a set that it is not a member of.
  bool RelaysForOthers(const ProcessSets& sets) const;

 private:
  struct Tally {
    std::set<int> voted;  // children
    Vote vote;            // merged; meaningless until a child has voted
  };

  void Settle(const ProcessSet& set, const Key& key,
              std::vector<CompleteVote>* complete);

  std::map<Key, Tally> tallies_;
  std::map<int32_t, std::set<int>> joined_;  // by set: children
  std::set<Key> passed_up_;  // voted to the parent, not yet in a batch
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_AGREEMENT_VOTES_H_
