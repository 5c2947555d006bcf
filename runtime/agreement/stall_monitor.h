// StallMonitor: sees to it that every wait ends (agreement.md, section 8). A
// rank that has waited long asks; the coordinator of its set sends the query to
// its members and tells who is missing; past the limit the job ends.
// Questions and answers go through the tree: each controller passes up one
// question, and one answer for all that is below it, so that a query costs it a
// message to and from each neighbour and not one for each member.
//
// Called by the controller, hence by the holder of the progress lock.
#ifndef TF_HVD_RUNTIME_AGREEMENT_STALL_MONITOR_H_
#define TF_HVD_RUNTIME_AGREEMENT_STALL_MONITOR_H_

#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/agreement/controller_host.h"
#include "runtime/agreement/local_requests.h"
#include "runtime/agreement/message.h"
#include "runtime/agreement/ordering.h"
#include "runtime/agreement/process_set.h"
#include "runtime/agreement/stall_answer.h"
#include "runtime/contract/world.h"
#include "runtime/request/request.h"

namespace tf_hvd {

struct StallOptions {
  int64_t warn_ns = 30'000'000'000;   // 0: never ask
  int64_t fail_ns = 300'000'000'000;  // 0: only warn
  int64_t query_ns = 2'000'000'000;   // how long answers are waited for
  int64_t grace_ns = 10'000'000'000;  // after fail_ns a waiter ends it itself
  // After this a call of a compiled step asks whether the others compile theirs
  // as well: its name is another then, and would be waited for in vain.
  int64_t compiled_ns = 2'000'000'000;
};

class StallMonitor {
 public:
  // Looks at what the controller consists of; that, `runner` and `host` outlive
  // the monitor.
  StallMonitor(const ProcessSets& sets, const Ordering& ordering,
               const LocalRequests& own, const Topology& topology,
               const StallOptions& options, const ResponseRunner& runner,
               ControllerHost* host);

  // Asks for own requests that wait, ends stall queries that are due, and looks
  // at the last limit. To be called several times a second.
  void Tick(int64_t now_ns);

  // When Tick is to be called at the latest, because the controller above waits
  // for what has been answered by then.
  int64_t due_ns() const;

  void OnAsk(const Message& ask, int64_t now_ns);
  void OnQuery(Message query, int64_t now_ns);
  void OnAnswer(int child, const Message& answer, int64_t now_ns);

  // The request is complete: a stall query about it is void.
  void Forget(const Key& key) { queries_.erase(key); }
  void ForgetSet(int32_t set);
  // The runtime has ended: nobody is missing any more.
  void ForgetAll() {
    queries_.clear();
    asked_.clear();
    quiet_since_.clear();
  }

 private:
  // One that is under way, at the coordinator or on its way up.
  struct StallQuery {
    uint32_t number = 0;
    int64_t due_ns = 0;     // when what has not been answered counts as silent
    std::set<int> awaited;  // children that have not answered
    StallAnswer answer;     // merged; `silent` without those below `awaited`
    int64_t since_ns = std::numeric_limits<int64_t>::max();  // of the longest
                                                             // wait
  };

  // What has become of a query.
  struct StallReport {
    StallAnswer answer;
    int64_t age_ns = 0;  // the longest wait
  };

  // What is known of an own wait.
  struct Asked {
    int64_t asked_ns = 0;  // last; 0: not yet
    int64_t since_ns = 0;  // asked for the first time since it was answered
    int64_t heard_ns = 0;  // the query came last; 0: never
    bool warned = false;   // that nobody answers, since asked_ns
    bool early = false;    // it was asked whether the others compile as well
  };

  bool WaitsTooLong(const std::map<Key, int64_t>& waits, int64_t now_ns);
  bool ExecutesTooLong(int64_t now_ns);
  void AbortWait(const Key& key, int rank, const std::string& what);
  void AskForWaits(const std::map<Key, int64_t>& waits, int64_t now_ns);
  void AskEarly(const Key& key, int64_t age_ns, int64_t now_ns);
  void Ask(const Key& key, int64_t now_ns);
  bool Heard(const Asked& asked) const;
  bool Unanswered(const Asked& asked, int64_t now_ns) const;
  std::vector<int> Above(const Key& key) const;
  StallAnswer OwnAnswer(const Key& key, int64_t now_ns) const;
  static void Take(const StallAnswer& answer, int64_t now_ns,
                   StallQuery* query);
  void EndIfComplete(const Key& key, int64_t now_ns);
  void EndQuery(const Key& key, int64_t now_ns);
  RankList Silent(const StallQuery& query,
                  const std::vector<int>& members) const;
  void Report(const Key& key, const StallReport& result);
  void ReportUncompiled(const Key& key, const StallReport& result);

  const ProcessSets& sets_;
  const Ordering& ordering_;
  const LocalRequests& own_;
  const Topology topology_;
  const StallOptions options_;
  const ResponseRunner& runner_;
  ControllerHost* const host_;
  const int height_;  // of the tree below
  std::map<Key, StallQuery> queries_;
  uint32_t last_query_ = 0;     // coordinator: its number
  std::map<Key, Asked> asked_;  // own waits
  // When a question was last passed up, or its query came.
  std::map<Key, int64_t> quiet_since_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_AGREEMENT_STALL_MONITOR_H_
