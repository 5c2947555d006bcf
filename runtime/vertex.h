// Vertex: a rank's place in the counting tree. Votes are counted up, frames
// come down; whoever first sees that a request is complete puts it in order.
// agreement.md sections 4 to 8 are the rules and the reasons.
//
// No thread, no clock, no transport: messages and times are handed in, what is
// to be done goes out through VertexHost. That is how it is tested on a virtual
// clock. Called by the holder of the helm only.
#ifndef TF_HVD_RUNTIME_VERTEX_H_
#define TF_HVD_RUNTIME_VERTEX_H_

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/ledger.h"
#include "runtime/message.h"
#include "runtime/stall_monitor.h"
#include "runtime/status.h"

namespace tf_hvd {

class Vertex {
 public:
  // `host` outlives the vertex.
  Vertex(const Topology& topology, const StallOptions& stall, VertexHost* host);

  // A request of this rank.
  void Admit(Entry entry);

  // A whole message from a neighbour in the tree.
  void Receive(int neighbour, std::string_view message, int64_t now_ns);

  // Puts what is ready in a frame if the executor has room. True if it did.
  bool EmitReady();

  // The executor has finished an own request.
  void Finished(const Key& key);

  // Stall checks; to be called several times a second.
  void Tick(int64_t now_ns);

  // This rank ends, for `reason`. All ranks' requests that are not in order
  // yet will fail with that text.
  void Leave(const std::string& reason);

  // Fails everything that waits with `status`; nothing is sent any more.
  void Abort(const Status& status);

  // Not ok: the runtime has ended (CLOSE or ABORT), for this reason.
  const Status& ended() const { return ended_; }

  // True if this rank has requests that are not in order yet.
  bool Waiting() const {
    return !ledger_.queue.empty() || !ledger_.want_join.empty();
  }
  // True if others wait for what this vertex, no member of their set, is to
  // pass on: it holds votes of theirs, or has passed them up and no frame has
  // come.
  bool RelaysForOthers() const;

  // For tests.
  const Ledger& ledger() const { return ledger_; }

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

  // Frames (vertex_frames.cc).
  void EmitReadyNow();
  FrameEntry MakeEntry(const Key& key, const Vote& vote);
  void TakeFrame(std::vector<FrameEntry> frame);
  void Emit(std::vector<FrameEntry> frame);
  void Forward(const std::vector<FrameEntry>& frame);
  void Apply(const std::vector<FrameEntry>& frame);
  void ApplyEntry(const FrameEntry& entry, std::vector<Run>* runs,
                  std::vector<Key>* popped);
  void ApplySetChange(const FrameEntry& entry, const Record& record);
  void RemoveSet(int32_t set);
  void Close(const FrameEntry& close);

  void FailQueued(const Status& status);
  Status ClosedStatus(const Key& key) const;
  void CompleteEntry(Entry* entry, const Status& status);
  void Bug(const std::string& text);
  Status RemovedStatus(int32_t set) const;
  std::string RankText(int rank) const;

  Ledger ledger_;
  const std::vector<std::string> hosts_;
  VertexHost* const host_;
  StallMonitor stall_;
  Status ended_;
  int through_ = -1;          // the rank that was through, and left
  std::set<int32_t> active_;  // sets with an agreed request since the last Tick
  uint64_t moved_ = 0;        // VertexHost::Moved at the last Tick
  bool finished_any_ = false;  // since then
  int32_t next_set_ = 1;       // the top's number for the next added set
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_VERTEX_H_
