// StallMonitor: ensures that every wait ends (agreement.md, section 8). A rank
// that has waited long asks. The coordinator of its set queries the members and
// reports the missing ranks. After the limit the job ends. Questions and
// answers go through the tree. Each controller passes up one question, and one
// answer for its whole subtree. A query therefore costs a controller one
// message to and from each neighbour, not one for each member.
//
// Called by the controller, so by the holder of the progress lock.
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
  int64_t warn_ns = 30'000'000'000;     // 0: never ask
  int64_t fail_ns = 1'800'000'000'000;  // 0: only warn
  // The limit when waiting cannot succeed: a rank does not answer, or all ranks
  // wait for each other. At most fail_ns.
  int64_t stuck_ns = 300'000'000'000;
  int64_t query_ns = 2'000'000'000;   // how long to wait for answers
  int64_t grace_ns = 10'000'000'000;  // after a limit, how long a waiting rank
                                      // leaves it to the coordinator
  // After this time a call in a compiled step checks whether the other ranks
  // compile theirs as well. If they do not, they use another name, so waiting
  // cannot succeed.
  int64_t compiled_ns = 2'000'000'000;
};

class StallMonitor {
 public:
  // Reads the controller's parts; they, `runner` and `host` outlive the
  // monitor.
  StallMonitor(const ProcessSets& sets, const Ordering& ordering,
               const LocalRequests& own, const Topology& topology,
               const StallOptions& options, const ResponseRunner& runner,
               ControllerHost* host);

  // Asks about this rank's waiting requests, ends stall queries that are due,
  // and checks the last limit. To be called several times a second.
  void Tick(int64_t now_ns);

  // Latest time for the next Tick: the controller above waits for the answers
  // collected by then.
  int64_t due_ns() const;

  void OnAsk(const Message& ask, int64_t now_ns);
  void OnQuery(Message query, int64_t now_ns);
  void OnAnswer(int child, const Message& answer, int64_t now_ns);

  // The request is complete: a stall query about it is void.
  void Forget(const Key& key) {
    queries_.erase(key);
    silence_.erase(key);
  }
  void ForgetSet(int32_t set);
  // The runtime has ended: no rank is missing any more.
  void ForgetAll() {
    queries_.clear();
    silence_.clear();
    asked_.clear();
    quiet_since_.clear();
  }

 private:
  // A query in progress, at the coordinator or on a controller below it.
  struct StallQuery {
    uint32_t number = 0;
    int64_t due_ns = 0;     // when ranks that have not answered count as silent
    std::set<int> awaited;  // children that have not answered
    // When this rank answers, after its program was asked for its line; 0: it
    // has answered.
    int64_t own_ns = 0;
    StallAnswer answer;  // merged; `silent` excludes the ranks below `awaited`
    int64_t since_ns = std::numeric_limits<int64_t>::max();  // of the longest
                                                             // wait
  };

  // The outcome of a query.
  struct StallReport {
    StallAnswer answer;
    int64_t age_ns = 0;  // the longest wait
    int64_t now_ns = 0;
  };

  // Coordinator: the ranks that have not answered the queries about one wait.
  struct Silence {
    std::vector<int32_t> ranks;  // silent in all queries since `since_ns`
    int64_t since_ns = 0;
    int64_t reported_ns = 0;
  };

  // The state of one of this rank's waits.
  struct Asked {
    int64_t asked_ns = 0;  // the last question; 0: not yet
    int64_t since_ns = 0;  // the first question since the last query
    int64_t heard_ns = 0;  // the last query; 0: never
    bool warned = false;   // about the lack of answers, since asked_ns
    bool early = false;  // it has asked whether the other ranks compile as well
  };

  bool WaitsTooLong(const std::map<Key, int64_t>& waits, int64_t now_ns);
  bool ExecutesTooLong(int64_t now_ns);
  void AbortWait(const Key& key, int rank, const std::string& what);
  void AskForWaits(const std::map<Key, int64_t>& waits, int64_t now_ns);
  bool AsksNow(const Asked& asked, int64_t since_ns, int64_t now_ns) const;
  void AskEarly(const Key& key, int64_t age_ns, int64_t now_ns);
  void Ask(const Key& key, bool early, int64_t now_ns);
  bool Heard(const Asked& asked) const;
  bool Unanswered(const Asked& asked, int64_t now_ns) const;
  std::vector<int> Above(const Key& key) const;
  StallAnswer OwnAnswer(const Key& key, int64_t now_ns) const;
  uint32_t StuckMs(int32_t set, const std::map<Key, int64_t>& waits,
                   int64_t now_ns) const;
  static void Take(const StallAnswer& answer, int64_t now_ns,
                   StallQuery* query);
  void AnswerDelayed(int64_t now_ns);
  void EndIfComplete(const Key& key, int64_t now_ns);
  void EndQuery(const Key& key, int64_t now_ns);
  RankList Silent(const StallQuery& query,
                  const std::vector<int>& members) const;
  int64_t SilentNs(const Key& key, const StallReport& result);
  void Report(const Key& key, const StallReport& result);
  void ReportUncompiled(const Key& key, const StallReport& result);

  const ProcessSets& sets_;
  const Ordering& ordering_;
  const LocalRequests& own_;
  const Topology topology_;
  const StallOptions options_;
  const ResponseRunner& runner_;
  ControllerHost* const host_;
  const int height_;  // of the tree below this rank
  std::map<Key, StallQuery> queries_;
  uint32_t last_query_ = 0;  // coordinator: number of the last query
  std::map<Key, Silence> silence_;
  std::map<Key, Asked> asked_;  // this rank's waits
  // When a question was last passed up, or its query arrived.
  std::map<Key, int64_t> quiet_since_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_AGREEMENT_STALL_MONITOR_H_
