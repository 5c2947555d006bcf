// StallMonitor: sees to it that every wait ends (agreement.md, section 8). A
// rank that has waited long asks; the controller that covers the set calls the
// query of its members and tells who is missing; past the limit the job ends.
//
// Called by the controller, hence by the holder of the engine.
#ifndef TF_HVD_RUNTIME_STALL_MONITOR_H_
#define TF_HVD_RUNTIME_STALL_MONITOR_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/controller_state.h"
#include "runtime/message.h"

namespace tf_hvd {

struct StallOptions {
  int64_t warn_ns = 30'000'000'000;   // 0: never ask
  int64_t fail_ns = 300'000'000'000;  // 0: only warn
  int64_t query_ns = 2'000'000'000;   // how long answers are waited for
  int64_t grace_ns = 10'000'000'000;  // after fail_ns a waiter ends it itself
};

class StallMonitor {
 public:
  // `state` and `host` outlive the monitor.
  StallMonitor(const ControllerState& state, const Topology& topology,
               const StallOptions& options, ControllerHost* host)
      : state_(state), topology_(topology), options_(options), host_(host) {}

  // Asks for own requests that wait, ends stall queries that are due, and looks
  // at the last limit. To be called several times a second.
  void Tick(int64_t now_ns);

  void OnAsk(const Message& ask, int64_t now_ns);
  void OnQuery(const Message& query, int64_t now_ns);
  void OnAnswer(const Message& answer, int64_t now_ns);

  // The request is complete: a stall query about it is void.
  void Forget(const Key& key) { queries_.erase(key); }
  void ForgetSet(int32_t set);
  // The runtime has ended: nobody is missing any more.
  void ForgetAll() {
    queries_.clear();
    asked_.clear();
  }

 private:
  struct Reply {
    Message answer;
    int64_t since_ns = 0;  // since when that rank waits
  };
  struct StallQuery {
    int64_t started_ns = 0;
    std::map<int, Reply> replies;  // each rank's latest
  };

  // What is known of an own wait.
  struct Asked {
    int64_t asked_ns = 0;  // last; 0: not yet
    int64_t heard_ns = 0;  // the query was called last; 0: never
    bool warned = false;   // that nobody answers, since asked_ns
  };

  std::map<Key, int64_t> Waits() const;
  bool WaitsTooLong(const std::map<Key, int64_t>& waits, int64_t now_ns);
  bool ExecutesTooLong(int64_t now_ns);
  void AbortWait(const Key& key, int rank, const std::string& what);
  void AskForWaits(const std::map<Key, int64_t>& waits, int64_t now_ns);
  void Ask(const Key& key, int64_t now_ns);
  bool Unanswered(const Asked& asked, int64_t now_ns) const;
  std::vector<int> Above(const Key& key) const;
  std::string NoAnswerText(const std::vector<int>& above) const;
  Message Answer(const Key& key, int64_t now_ns) const;
  // Who is where with a request. Empty if it has been put in order meanwhile.
  struct QueryResult {
    int64_t age_ns = 0;  // the longest wait
    std::vector<int> voted;
    std::vector<int> missing;
    std::vector<int> silent;
  };

  QueryResult Evaluate(const StallQuery& query, const std::vector<int>& members,
                       int64_t now_ns) const;
  void Report(const Key& key, const StallQuery& query, int64_t now_ns);
  std::string StallText(const Key& key, const StallQuery& query,
                        const QueryResult& result) const;
  std::string RankText(int rank) const;
  std::string ListText(const std::vector<int>& ranks) const;
  std::string MissingText(const StallQuery& query,
                          const std::vector<int>& ranks) const;

  const ControllerState& state_;
  const Topology topology_;
  const StallOptions options_;
  ControllerHost* const host_;
  std::map<Key, StallQuery> queries_;  // covering controller: calls in progress
  std::map<Key, Asked> asked_;         // own waits
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_STALL_MONITOR_H_
