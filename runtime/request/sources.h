// Sources: the variables that the gradients of a call belong to, so that ranks
// never reduce the gradients of different variables with each other.
//
// Ranks identify a variable by the broadcast of its initial value. The root
// sends one random number with each such call; a variable's identity consists
// of that number and its place in the call. A variable that was never broadcast
// is identified only by its place in the list of sources.
//
// Each process has one table. Python registers a list of sources before the
// first call that uses it. The list's number is random, so that a graph saved
// by another process does not refer to a list of this one. Any thread.
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
  int64_t place = 0;     // in the whole list; a call may have a part of it
  std::string name;      // the variable's, for errors
};

// An immutable snapshot of a list.
struct SourceList {
  int64_t digest = 0;  // of the identities; never 0
  std::string bytes;   // identities and names, for DescribeSources
};

// How two ranks' lists differ: "'a/kernel' (tensor 2)" for the first and for
// the second list. The arguments are the `bytes` of the lists; a malformed list
// has no names.
std::pair<std::string, std::string> DescribeSources(std::string_view first,
                                                    std::string_view second);

class SourceTable {
 public:
  // Registers the list `number`, replacing an earlier version.
  void Note(int64_t number, std::vector<Source> sources);
  // Removes a list that will not be used again.
  void Forget(int64_t number);
  // Removes a variable that no longer exists. Identities live as long as their
  // variables: a list may be removed earlier, and on some ranks only.
  void ForgetVariable(int64_t variable);

  // Null if there is no such list.
  std::shared_ptr<const SourceList> Find(int64_t number);

  // The number that a broadcast's root sends. It is the random number of an
  // earlier broadcast that all variables of the list took part in, each at its
  // place. Ranks that missed the later broadcast then still agree with the
  // others. Otherwise a new one. From 1 to 2^62 - 1.
  int64_t BroadcastNumber(int64_t number);
  // Notes that the list has been broadcast with the root's number `sent`.
  void Identify(int64_t number, int64_t sent);

  // Counts one reduction of a list's gradients by a process set; returns the
  // number since the job began or its ranks last joined. `variable`:
  // TensorFlow's name of the first one. A graph that is saved and loaded has
  // its own variables and a separate count, also in the process that saved it:
  // equally on all ranks.
  int64_t CountReduction(int64_t number, const std::string& variable,
                         int32_t set);
  void AfterJoin(int32_t set);

  // A new job begins; its ranks may be a new combination.
  void Restart();

 private:
  struct Identity {
    int64_t sent = 0;  // 0: never broadcast in this job
    int64_t place = 0;
  };
  struct List {
    std::vector<Source> sources;
    std::shared_ptr<const SourceList> known;  // null: out of date
  };
  using Counted = std::tuple<int64_t, int32_t, std::string>;  // list, set, name

  std::shared_ptr<const SourceList> Describe(const List& list) const
      REQUIRES(mutex_);

  Mutex mutex_;
  std::map<int64_t, List> lists_ GUARDED_BY(mutex_);
  std::map<int64_t, Identity> variables_ GUARDED_BY(mutex_);  // broadcast ones
  std::map<Counted, int64_t> reductions_ GUARDED_BY(mutex_);
};

// The process's table.
SourceTable* TheSources();

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_REQUEST_SOURCES_H_
