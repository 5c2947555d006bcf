// ControllerState: the state of a controller of the counting tree
// (agreement.md, section 4). Plain data; controller.cc has the rules,
// stall_monitor.cc reads it.
//
// Owned by the holder of the progress lock.
#ifndef TF_HVD_RUNTIME_CONTROLLER_STATE_H_
#define TF_HVD_RUNTIME_CONTROLLER_STATE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/agreement.h"
#include "runtime/entry.h"
#include "runtime/process_set.h"
#include "runtime/transport/tree.h"
#include "runtime/transport/world.h"

namespace tf_hvd {

// The name of join on the wire; no op can have it.
inline const std::string kJoinName = "\x01join";

using Key = std::pair<int32_t, std::string>;  // (set, name)

// The votes that a controller holds for an open request.
struct Tally {
  std::set<int> voted;  // children, or this rank itself
  Vote vote;            // merged; meaningless while nobody has voted
};

// One agreed request, as the executor gets it.
struct Task {
  int32_t set = kWorldSet;
  std::string name;
  Request request;
  std::string error;  // not empty: it fails with this text
  int32_t last = 0;   // join: the last rank; add_process_set: the new set
  SetMembers ranks;   // of the set
  std::optional<Entry> own;  // absent if this rank has joined, or refused
  bool is_root = false;      // broadcast: this rank is the root
};

// An own request that has been put in order.
struct Executing {
  int64_t since_ns = 0;  // the executor has not moved since; 0: not looked yet
  std::shared_ptr<const Caller> caller;
};

struct ControllerState {
  int rank = 0;
  TreePlace place;
  std::map<int32_t, ProcessSet> sets;
  std::set<int32_t> gone;  // removed sets
  std::map<Key, Tally> tallies;
  std::map<Key, Vote> ready;               // complete, not yet in a batch
  std::map<Key, std::deque<Entry>> queue;  // own, only the front one is voted
  std::map<int32_t, Entry> want_join;      // join waits for open votes
  // Own, agreed, oldest first. Of one name more than one only if the callers
  // of the earlier ones have gone.
  std::multimap<Key, Executing> executing;
  int64_t moved_ns = 0;     // when the executor was last seen to move
  std::set<Key> passed_up;  // voted to the parent, not yet in a batch
  // For tests: responses that were encoded, for whichever children.
  uint64_t responses_encoded = 0;
};

// What a controller needs of its surroundings. All are called by the holder of
// the progress lock, inside a call of the controller, and must not call the
// controller back.
class ControllerHost {
 public:
  virtual ~ControllerHost() = default;
  // Never blocks: what does not fit waits in an out-queue. Several neighbours
  // may be sent the same bytes, which need not stay after the call.
  virtual void Send(int neighbour, std::string_view message) = 0;
  // What one batch gives this rank to do, in order.
  virtual void Execute(std::vector<Task> batch) = 0;
  // Grows while what was handed to Execute moves.
  virtual uint64_t Moved() const = 0;
  // The rank whose data is waited for; -1 if none is.
  virtual int Awaited() const = 0;
  // Batches handed to Execute of which nothing has begun.
  virtual size_t Backlog() const = 0;
  // To be fired when the progress lock is free.
  virtual void Complete(Completion done, Status status, int32_t value) = 0;
  virtual void SetAdded(int32_t set, const SetMembers& members) = 0;
  virtual void SetRemoved(int32_t set) = 0;
  virtual void Warn(const std::string& text) = 0;
  // The job cannot go on.
  virtual void Abort(AbortRecord::Class error_class, int32_t rank,
                     const std::string& text) = 0;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_CONTROLLER_STATE_H_
