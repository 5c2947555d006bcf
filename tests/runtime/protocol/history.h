// History: the events of a simulated run that the checks need.
#ifndef TF_HVD_TESTS_RUNTIME_PROTOCOL_HISTORY_H_
#define TF_HVD_TESTS_RUNTIME_PROTOCOL_HISTORY_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/types.h"
#include "runtime/agreement/stall_monitor.h"

namespace tf_hvd::protocol_test {

enum class Scenario {
  kPlain,
  kSets,
  kMismatch,
  kDuplicateOne,  // one rank submits one name twice
  kDuplicateAll,  // all ranks do
  kRefusal,
  kJoin,
  kJoinSets,
  kDynamicSets,
  kLeave,
  kMissing,  // some ranks skip one call
  kDeath,
  kStopped,
  kLateRank,  // others wait until warnings are due, or nearly until the limit
};
const char* NameOf(Scenario scenario);

// One call of one rank and its outcome.
struct Submission {
  int rank = 0;
  int32_t set = 0;
  std::string name;
  OpKind kind = OpKind::kAllreduce;
  int instance = 0;  // the number of this name's call in this set on this rank
  std::string local_error;
  int64_t step = -1;
  bool late = false;    // made between join() and its return
  bool orphan = false;  // its rank was already dead or stopped
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  int fired = 0;  // how often the completion was called
  Status status;
  int32_t value = 0;
};

// Those of the product, except the last: rounds are shorter.
inline StallOptions StallLimits() {
  StallOptions limits;
  limits.fail_ns = 420 * kSecond;
  return limits;
}

// A stall report, or the text of a stall's ABORT.
struct StallReport {
  int64_t time_ns = 0;
  bool fatal = false;
  std::string text;
};

// One entry of a set's order, as seen by the first rank to execute it.
struct Ordered {
  std::string name;
  std::string error;
  std::set<int> ranks;  // that have executed it
};

using OrderKey = std::pair<int32_t, int>;  // (set, place in its order)

struct History {
  Scenario scenario = Scenario::kPlain;
  std::vector<Submission> submissions;
  std::vector<StallReport> reports;
  std::map<OrderKey, Ordered> order;
  std::map<int, std::vector<OrderKey>> executed;  // by rank
  std::map<int32_t, std::vector<int>> members;    // of each set ever added
  std::map<int, int> parent;                      // in the tree; -1: none
  std::set<int> dead;
  std::set<int> stopped;
  bool unseen_death = false;  // of a whole node, without a report by MPI
  int64_t last_death_ns = 0;
  int64_t abort_ns = -1;  // when the first ABORT was raised; -1: never
  int64_t leave_ns = -1;  // when the first rank left
  bool executor_steps = true;
  bool deferred_join = false;  // joins may wait for this rank's requests
  std::string failure;         // a fault found while running; empty: none

  bool Alive(int rank) const {
    return dead.count(rank) == 0 && stopped.count(rank) == 0;
  }
  void Fail(const std::string& what) {
    if (failure.empty()) failure = what;
  }
};

}  // namespace tf_hvd::protocol_test

#endif  // TF_HVD_TESTS_RUNTIME_PROTOCOL_HISTORY_H_
