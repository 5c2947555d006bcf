// Controller: a rank's place in the counting tree. Votes are counted up,
// batches come down; whoever first sees that a request is complete puts it in
// order. agreement.md sections 4 to 8 are the rules and the reasons.
//
// Three classes have the rules: LocalRequests whose turn it is on this rank,
// Votes when a request is complete, Ordering what becomes of it. Here messages
// and own requests come in, what one of the three gives goes to the next, and
// the runtime ends.
//
// No thread, no clock, no transport: messages and times are handed in, what is
// to be done goes out through ControllerHost. That is how it is tested on a
// virtual clock. Called by the holder of the progress lock only.
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

  // A request of this rank.
  void Admit(Entry entry);

  // A whole message from a neighbour in the tree.
  void Receive(int neighbour, std::string_view message, int64_t now_ns);

  // Puts what is ready in a batch if the executor has room. True if it did.
  bool EmitReady();

  // The executor has finished an own request.
  void Finished(const Key& key) { own_.Finished(key); }

  // Stall checks; to be called several times a second, and at due_ns().
  void Tick(int64_t now_ns);
  // When others wait for what a Tick of this rank sends; far away if they do
  // not.
  int64_t due_ns() const {
    if (!ended_.ok()) return stall_.due_ns();
    return std::min(stall_.due_ns(), clock_.due_ns());
  }

  // This rank ends, for `reason`. All ranks' requests that are not in order
  // yet will fail with that text. `through`: it has made all calls that it
  // wanted to, rather than failed.
  void Leave(const std::string& reason, bool through);

  // Fails everything that waits with `status`; nothing is sent any more.
  void Abort(const Status& status);

  // Not ok: the runtime has ended (CLOSE or ABORT), for this reason.
  const Status& ended() const { return ended_; }

  // True if this rank has requests that are not in order yet.
  bool Waiting() const { return own_.Waiting(); }
  // True if others wait for what this controller, no member of their set, is to
  // pass on: it holds votes of theirs, or has passed them up and no batch has
  // come.
  bool RelaysForOthers() const { return votes_.RelaysForOthers(sets_); }

  const ProcessSets& sets() const { return sets_; }

  ClockOffset* clock() { return &clock_; }

  // For tests.
  const Votes& votes() const { return votes_; }
  const Ordering& ordering() const { return ordering_; }
  const LocalRequests& own() const { return own_; }

 private:
  Status Admissible(const Entry& entry) const;

  // Up.
  void VoteInTurn();
  void CastVote(const Key& key, const Entry& entry);
  void TakeVote(int child, Message message);
  void Count(int child, const Key& key, const Vote& vote);
  void PassUp(const ProcessSet& set, const Key& key, const Vote& vote);
  void TakeLeave(const Message& message);
  void AskClock(int64_t now_ns);
  void AnswerClock(int child, const Message& question, int64_t now_ns);

  // Down.
  void TakeResponses(std::vector<Response> batch);
  void Emit(std::vector<Response> batch);
  void Forward(const std::vector<Response>& batch);
  void Apply(std::vector<Response> batch);
  void ApplyResponse(Response response, std::vector<Response>* mine);
  void ApplySetChange(const Response& response);
  void RemoveSet(int32_t set);

  // The end.
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
  int through_ = -1;  // the rank that was through, and left
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_AGREEMENT_CONTROLLER_H_
