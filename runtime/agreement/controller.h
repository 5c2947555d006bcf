// Controller: a rank's place in the counting tree. Votes are counted on the way
// up, batches travel down. The first controller that sees a complete request
// orders it. agreement.md sections 4 to 8 state the rules and the reasons.
//
// Three classes implement the rules. LocalRequests says which of this rank's
// requests to vote for, Votes when a request is complete, and Ordering what
// happens to it. The controller receives messages and this rank's requests,
// passes the results from one class to the next, and ends the runtime.
//
// No thread, no clock, no transport: messages and times are passed in, and
// actions go out through ControllerHost, so that tests can use a virtual clock.
// Called only by the holder of the progress lock.
#ifndef TF_HVD_RUNTIME_AGREEMENT_CONTROLLER_H_
#define TF_HVD_RUNTIME_AGREEMENT_CONTROLLER_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "runtime/agreement/clock_offset.h"
#include "runtime/agreement/controller_host.h"
#include "runtime/agreement/local_requests.h"
#include "runtime/agreement/message.h"
#include "runtime/agreement/ordering.h"
#include "runtime/agreement/process_set.h"
#include "runtime/agreement/stall_monitor.h"
#include "runtime/agreement/votes.h"
#include "runtime/request/request.h"

namespace tf_hvd {

class Controller {
 public:
  // `runner` and `host` outlive the controller.
  Controller(const Topology& topology, const StallOptions& stall,
             ResponseRunner* runner, ControllerHost* host);

  // Accepts a request of this rank.
  void Admit(Entry entry);

  // Processes a whole message from a neighbour in the tree.
  void Receive(int neighbour, std::string_view message, int64_t now_ns);

  // Makes a batch of the ready requests if the executor has room. True if it
  // did.
  bool EmitReady();

  // The executor has finished a request of this rank.
  void Finished(const Key& key) { own_.Finished(key); }

  // Runs the stall checks; to be called several times a second, and at
  // due_ns().
  void Tick(int64_t now_ns);
  // Latest time for the next Tick, if other ranks wait for its message; far in
  // the future if there is none.
  int64_t due_ns() const {
    if (!ended_.ok()) return stall_.due_ns();
    return std::min(stall_.due_ns(), clock_.due_ns());
  }

  // This rank leaves, for `reason`. All ranks' requests that are not ordered
  // yet will fail with that text. `through`: this rank made all of its calls
  // and did not fail.
  void Leave(const std::string& reason, bool through);

  // Fails all pending requests with `status`; nothing is sent any more.
  void Abort(const Status& status);

  // Not ok: the runtime has ended (CLOSE or ABORT), for this reason.
  const Status& ended() const { return ended_; }

  // True if this rank has requests that are not ordered yet.
  bool Waiting() const { return own_.Waiting(); }
  // True if this controller relays votes for a set that this rank is not a
  // member of: it holds votes of the set, or has passed them up and no batch
  // has arrived.
  bool RelaysForOthers() const { return votes_.RelaysForOthers(sets_); }

  const ProcessSets& sets() const { return sets_; }

  ClockOffset* clock() { return &clock_; }

  // For tests.
  const Votes& votes() const { return votes_; }
  const Ordering& ordering() const { return ordering_; }
  const LocalRequests& own() const { return own_; }

 private:
  Status Admissible(const Entry& entry) const;

  // Upward messages.
  void VoteInTurn();
  void CastVote(const Key& key, const Entry& entry);
  void TakeVote(int child, Message message);
  void Count(int child, const Key& key, const Vote& vote);
  void PassUp(const ProcessSet& set, const Key& key, const Vote& vote);
  void TakeLeave(const Message& message);
  void AskClock(int64_t now_ns);
  void AnswerClock(int child, const Message& question, int64_t now_ns);

  // Downward messages.
  void TakeResponses(std::vector<Response> batch);
  void Emit(std::vector<Response> batch);
  void Forward(const std::vector<Response>& batch);
  void Apply(std::vector<Response> batch);
  void ApplyResponse(Response response, std::vector<Response>* mine);
  void ApplySetChange(const Response& response);
  void RemoveSet(int32_t set);

  // Shutdown.
  void Close(const Response& close);
  void FailAll();
  Status EndedStatus(const Key& key) const;
  void Bug(const std::string& text);

  const SharedValue<std::vector<std::string>> hosts_;
  ResponseRunner* const runner_;
  ControllerHost* const host_;
  ProcessSets sets_;
  Votes votes_;
  Ordering ordering_;
  LocalRequests own_;
  StallMonitor stall_;
  ClockOffset clock_;
  SourceNames told_;  // by this rank; without the names
  Status ended_;
  int through_ = -1;  // the rank that left after making all its calls
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_AGREEMENT_CONTROLLER_H_
