// Votes: the count at one place in the tree. Holds a tally for each request
// that some children have voted for, says when one is complete, which is when
// it goes on, and remembers what has gone on to the parent.
//
// A child that has joined counts as having voted for everything, and so does
// one without members. This rank is one of its own children.
//
// Sends nothing and knows no names but join's. Owned by the holder of the
// progress lock.
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

// A request that all members in the subtree have submitted, and their votes as
// one.
struct CompleteVote {
  Key key;
  Vote vote;
};

class Votes {
 public:
  // A vote of `child`. Gives what is complete with it, in the order in which it
  // is to go on; nothing at all (nullopt) if the child has voted for that
  // before, which is a bug. What is not coordinated here counts as passed up.
  [[nodiscard]] std::optional<std::vector<CompleteVote>> Count(
      const ProcessSet& set, int child, const Key& key, const Vote& vote);

  // The request is in order: its next instance may be voted for.
  void Ordered(const Key& key);

  // The set is gone.
  void DropSet(int32_t set);
  // The runtime has ended.
  void Clear();

  // True if nothing is being counted, and no batch is waited for.
  bool empty() const { return tallies_.empty() && passed_up_.empty(); }
  // True if this rank has part in votes for a set that it is no member of.
  bool RelaysForOthers(const ProcessSets& sets) const;

 private:
  struct Tally {
    std::set<int> voted;  // children
    Vote vote;            // merged; meaningless while nobody has voted
  };

  void Settle(const ProcessSet& set, const Key& key,
              std::vector<CompleteVote>* complete);

  std::map<Key, Tally> tallies_;
  std::map<int32_t, std::set<int>> joined_;  // by set: children
  std::set<Key> passed_up_;  // voted to the parent, not yet in a batch
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_AGREEMENT_VOTES_H_
