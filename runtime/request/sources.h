// Sources: what the gradients of a call belong to, so that ranks never reduce
// the gradients of different variables with each other.
//
// A variable is known by where the ranks agreed on it: in a broadcast of
// initial values. The root sends one random number with each such call, and a
// variable's identity is made of that number and its place in the call. What
// was never broadcast is known by its place in the list of sources alone.
//
// A process has one table. Python notes a list of sources before the first call
// that is about it, under a number that is random, so that a graph which
// another process has saved names none of this one's. Any thread.
#ifndef TF_HVD_RUNTIME_REQUEST_SOURCES_H_
#define TF_HVD_RUNTIME_REQUEST_SOURCES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace tf_hvd {

struct Source {
  int64_t variable = 0;  // the variable's number in this process; 0: none
  int64_t place = 0;     // in the whole list, of which a call may have a part
  std::string name;      // of the variable, for errors
};

// A list as it is at the moment. Does not change any more.
struct SourceList {
  int64_t digest = 0;  // of the identities; never 0
  std::string bytes;   // identities and names: for DescribeSources
};

// How two ranks' lists differ: "'a/kernel' (tensor 2)" of the first, and of the
// second. Each is the `bytes` of a list; a malformed one has no names.
std::pair<std::string, std::string> DescribeSources(std::string_view first,
                                                    std::string_view second);

class SourceTable {
 public:
  // The list `number` is this from now on.
  void Note(int64_t number, std::vector<Source> sources);
  // Nobody will ask for the list again.
  void Forget(int64_t number);
  // The variable is gone. What is known of one lives as long as it does: a list
  // may go earlier, and on some ranks alone.
  void ForgetVariable(int64_t variable);

  // Null if there is no such list.
  std::shared_ptr<const SourceList> Find(int64_t number);

  // What the root of a broadcast sends: the random number that all of the list
  // have got in one broadcast before, each at its place, so that ranks which
  // were in that one and are not in this still agree with those that are. Else
  // a new one. From 1 to 2^62 - 1.
  int64_t BroadcastNumber(int64_t number);
  // The list has been broadcast, and the root has sent `sent`.
  void Identify(int64_t number, int64_t sent);

  // Counts one reduction of a list's gradients by a process set; returns how
  // many there have been since the job began, or its ranks last joined.
  // `variable`: TensorFlow's name of the first one. A graph that is saved and
  // loaded has variables of its own and is counted by itself, also in the
  // process that has saved it: on all ranks alike.
  int64_t CountReduction(int64_t number, const std::string& variable,
                         int32_t set);
  void AfterJoin(int32_t set);

  // A job begins: its ranks may not have been together before.
  void Restart();

 private:
  struct Identity {
    int64_t sent = 0;  // 0: never broadcast in this job
    int64_t place = 0;
  };
  struct List {
    std::vector<Source> sources;
    std::shared_ptr<const SourceList> known;  // null: something has changed
  };
  using Counted = std::tuple<int64_t, int32_t, std::string>;  // list, set, name

  std::shared_ptr<const SourceList> Describe(const List& list) const
      REQUIRES(mutex_);

  Mutex mutex_;
  std::map<int64_t, List> lists_ GUARDED_BY(mutex_);
  std::map<int64_t, Identity> variables_ GUARDED_BY(mutex_);  // broadcast ones
  std::map<Counted, int64_t> reductions_ GUARDED_BY(mutex_);
};

// The process's.
SourceTable* TheSources();

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_REQUEST_SOURCES_H_
