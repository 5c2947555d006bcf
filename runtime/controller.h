// Controller: a rank's place in the counting tree. Votes are counted up,
// batches come down; whoever first sees that a request is complete puts it in
// order. agreement.md sections 4 to 8 are the rules and the reasons.
//
// No thread, no clock, no transport: messages and times are handed in, what is
// to be done goes out through ControllerHost. That is how it is tested on a
// virtual clock. Called by the holder of the progress lock only.
#ifndef TF_HVD_RUNTIME_CONTROLLER_H_
#define TF_HVD_RUNTIME_CONTROLLER_H_

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/controller_state.h"
#include "runtime/message.h"
#include "runtime/stall_monitor.h"
#include "runtime/status.h"

namespace tf_hvd {

class Controller {
 public:
  // `host` outlives the controller.
  Controller(const Topology& topology, const StallOptions& stall,
             ControllerHost* host);

  // A request of this rank.
  void Admit(Entry entry);

  // A whole message from a neighbour in the tree.
  void Receive(int neighbour, std::string_view message, int64_t now_ns);

  // Puts what is ready in a batch if the executor has room. True if it did.
  bool EmitReady();

  // The executor has finished an own request.
  void Finished(const Key& key);

  // Stall checks; to be called several times a second, and at due_ns().
  void Tick(int64_t now_ns);
  // When others wait for what a Tick of this rank sends; far away if they do
  // not.
  int64_t due_ns() const { return stall_.due_ns(); }

  // This rank ends, for `reason`. All ranks' requests that are not in order
  // yet will fail with that text.
  void Leave(const std::string& reason);

  // Fails everything that waits with `status`; nothing is sent any more.
  void Abort(const Status& status);

  // Not ok: the runtime has ended (CLOSE or ABORT), for this reason.
  const Status& ended() const { return ended_; }

  // True if this rank has requests that are not in order yet.
  bool Waiting() const {
    return !state_.queue.empty() || !state_.want_join.empty();
  }
  // True if others wait for what this controller, no member of their set, is to
  // pass on: it holds votes of theirs, or has passed them up and no batch has
  // come.
  bool RelaysForOthers() const;

  // For tests.
  const ControllerState& state() const { return state_; }

 private:
  // Voting.
  bool AdmitLocally(Entry* entry);
  bool IsExecuting(const Key& key) const;
  void TryJoin(int32_t set);
  void CastVote(const Key& key, const Entry& entry);
  void Count(int child, const Key& key, const Vote& vote);
  void Settle(const Key& key);
  bool Complete(const ProcessSet& set, const Tally& tally) const;
  void SendVote(const ProcessSet& set, const Key& key, const Vote& vote);
  void TakeVote(int child, Message message);
  void TakeLeave(const Message& message);

  // Frames (controller_responses.cc).
  void EmitReadyNow();
  Response MakeResponse(const Key& key, const Vote& vote);
  void TakeResponses(std::vector<Response> batch);
  void Emit(std::vector<Response> batch);
  void Forward(const std::vector<Response>& batch);
  void Apply(const std::vector<Response>& batch);
  void ApplyResponse(const Response& entry, std::vector<Task>* runs,
                     std::vector<Key>* popped);
  void ApplySetChange(const Response& entry, const Request& request);
  void RemoveSet(int32_t set);
  void Close(const Response& close);

  void FailQueued(const Status& status);
  Status ClosedStatus(const Key& key) const;
  void CompleteEntry(Entry* entry, const Status& status);
  void Bug(const std::string& text);
  Status RemovedStatus(int32_t set) const;

  ControllerState state_;
  const std::vector<std::string> hosts_;
  ControllerHost* const host_;
  StallMonitor stall_;
  Status ended_;
  int through_ = -1;          // the rank that was through, and left
  std::set<int32_t> active_;  // sets with an agreed request since the last Tick
  uint64_t moved_ = 0;        // ControllerHost::Moved at the last Tick
  bool finished_any_ = false;  // since then
  int32_t next_set_ = 1;       // the top's number for the next added set
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_CONTROLLER_H_
