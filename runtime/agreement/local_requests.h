// LocalRequests: this rank's requests, from their admission until the executor
// has finished them. Says which requests to vote for: only the oldest of each
// name, and join when the set has no other request left to vote for.
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

// A request of this rank that has been ordered.
struct Executing {
  // Since when the executor has not moved; 0: not checked yet.
  int64_t since_ns = 0;
  std::shared_ptr<const CallerState> caller;
};

class LocalRequests {
 public:
  // Reports the outcome of a request to its caller.
  using Tell = std::function<void(Completion done, const Status& status)>;

  explicit LocalRequests(Tell tell) : tell_(std::move(tell)) {}

  // A rank that has joined submits nothing in that set before join() returns.
  bool HasJoined(int32_t set) const;

  // Adds a request of a set that this rank is a member of, and has not joined.
  // A request that is invalid on this rank only is answered here, but stays: it
  // is voted as a local error, so that the other ranks' calls fail as well.
  void Add(Entry entry);

  // Requests to vote for, oldest first; each request is returned once.
  std::vector<Key> TakeTurns();
  // The oldest request of that name.
  const Entry& Front(const Key& key) const { return queue_.at(key).front(); }

  // The request has been ordered: the next of its name may be voted for. Empty
  // if this rank has joined, or if the call has been answered.
  std::optional<Entry> Ordered(const Key& key);

  // The executor has finished an ordered request.
  void Finished(const Key& key);

  // Resets waits that are not stalls; to be called several times a second. Join
  // does not stall while other ranks of its set have requests ordered, nor do
  // executing requests while they make progress, as `moved` then increases.
  void NoteProgress(uint64_t moved, int64_t now_ns);

  // Fails the requests that are not ordered yet: all of them, or those of one
  // set.
  void FailAll(const std::function<Status(const Key& key)>& why);
  void FailSet(int32_t set, const Status& status);

  // Reports to the caller, unless it already has an answer.
  void Answer(Entry* entry, const Status& status);

  // Whether the oldest request of that name belongs to a step that XLA has
  // compiled, and whether any request did since the runtime was started.
  bool IsCompiled(const Key& key) const;
  bool ever_compiled() const { return ever_compiled_; }

  // True if some request is not ordered yet.
  bool Waiting() const { return !queue_.empty() || !want_join_.empty(); }
  // The requests that are not ordered yet, and since when their callers wait.
  // Excludes requests already answered, which only other ranks wait for.
  std::map<Key, int64_t> Waits() const;
  // True if this rank has submitted the request, or counts as if it had because
  // it has joined, and the request is not ordered yet.
  bool HasSubmitted(const Key& key) const;
  // Ordered, not yet finished. More than one of a name only if the callers of
  // the earlier ones have left; the oldest comes first.
  const std::multimap<Key, Executing>& executing() const { return executing_; }
  // When the executor last made progress.
  int64_t moved_ns() const { return moved_ns_; }
  // When the last request was submitted.
  int64_t submitted_ns() const { return submitted_ns_; }

 private:
  bool IsWaitedFor(const Key& key) const;
  void AdmitJoins();

  const Tell tell_;
  std::map<Key, std::deque<Entry>> queue_;  // only the front one is voted for
  // By set: wait until all other requests are voted for.
  std::map<int32_t, Entry> want_join_;
  std::vector<Key> turns_;  // to vote for
  std::multimap<Key, Executing> executing_;
  // Sets with a request ordered since the last NoteProgress.
  std::set<int32_t> active_;
  bool finished_any_ = false;  // since the last NoteProgress
  uint64_t moved_ = 0;         // at the last NoteProgress
  int64_t moved_ns_ = 0;
  int64_t submitted_ns_ = 0;
  bool ever_compiled_ = false;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_AGREEMENT_LOCAL_REQUESTS_H_
