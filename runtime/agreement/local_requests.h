// LocalRequests: this rank's own requests, from when they are admitted until
// the executor has finished them. Says whose turn it is to be voted for: of one
// name only the oldest is, and join when nothing else of the set is left to
// vote for.
//
// Casts no vote itself. Owned by the holder of the progress lock.
#ifndef TF_HVD_RUNTIME_AGREEMENT_LOCAL_REQUESTS_H_
#define TF_HVD_RUNTIME_AGREEMENT_LOCAL_REQUESTS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/status.h"
#include "runtime/request/entry.h"
#include "runtime/request/request.h"

namespace tf_hvd {

// An own request that has been put in order.
struct Executing {
  int64_t since_ns = 0;  // the executor has not moved since; 0: not looked yet
  std::shared_ptr<const CallerState> caller;
};

class LocalRequests {
 public:
  // Tells a caller what has become of its request.
  using Tell = std::function<void(Completion done, const Status& status)>;

  explicit LocalRequests(Tell tell) : tell_(std::move(tell)) {}

  // Whoever has joined submits nothing in that set before join() returns.
  bool HasJoined(int32_t set) const;

  // A request of a set that this rank is a member of, and has not joined. One
  // that is wrong on this rank alone is answered here, but stays: it is voted
  // as a local error, so that the other ranks' calls fail as well.
  void Add(Entry entry);

  // What is to be voted for, oldest turn first; each request is given once.
  std::vector<Key> TakeTurns();
  // The oldest request of that name.
  const Entry& Front(const Key& key) const { return queue_.at(key).front(); }

  // The request is in order: the next of its name has its turn. None if this
  // rank has joined, or if the call has been answered.
  std::optional<Entry> Ordered(const Key& key);

  // The executor has finished what was put in order.
  void Finished(const Key& key);

  // What counts as no wait, to be called several times a second: join's, while
  // others of its set put something in order, and what executes, while it
  // moves. `moved` grows then.
  void NoteProgress(uint64_t moved, int64_t now_ns);

  // Fails what is not in order yet: all of it, or that of one set.
  void FailAll(const std::function<Status(const Key& key)>& why);
  void FailSet(int32_t set, const Status& status);

  // Tells the caller, unless it has been told.
  void Answer(Entry* entry, const Status& status);

  // Whether the oldest request of that name is of a step that XLA has compiled,
  // and whether any was since the runtime was started.
  bool IsCompiled(const Key& key) const;
  bool ever_compiled() const { return ever_compiled_; }

  // True if something is not in order yet.
  bool Waiting() const { return !queue_.empty() || !want_join_.empty(); }
  // What is not in order yet, and since when its caller waits. A request that
  // has been answered only others wait for: it is not among them.
  std::map<Key, int64_t> Waits() const;
  // True if this rank has submitted the request, or counts as if it had because
  // it has joined, and it is not in order yet.
  bool HasSubmitted(const Key& key) const;
  // In order, not yet finished. Of one name more than one only if the callers
  // of the earlier ones have gone; the oldest comes first.
  const std::multimap<Key, Executing>& executing() const { return executing_; }
  // When the executor was last seen to move.
  int64_t moved_ns() const { return moved_ns_; }

 private:
  bool IsWaitedFor(const Key& key) const;
  void AdmitJoins();

  const Tell tell_;
  std::map<Key, std::deque<Entry>> queue_;  // only the front one is voted for
  std::map<int32_t, Entry> want_join_;      // by set: waits for open votes
  std::vector<Key> turns_;                  // to vote for
  std::multimap<Key, Executing> executing_;
  std::set<int32_t> active_;  // sets with something put in order since the last
                              // NoteProgress
  bool finished_any_ = false;  // since then
  uint64_t moved_ = 0;         // then
  int64_t moved_ns_ = 0;
  bool ever_compiled_ = false;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_AGREEMENT_LOCAL_REQUESTS_H_
