#include "runtime/vertex.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tf_hvd {

Vertex::Vertex(const Topology& topology, const StallOptions& stall,
               VertexHost* host)
    : hosts_(topology.hosts),
      host_(host),
      stall_(ledger_, topology, stall, host) {
  ledger_.rank = topology.rank;
  ledger_.place = PlaceOf(topology.rank, topology.nodes, topology.fan_out);
  std::vector<int> world(static_cast<size_t>(topology.size));
  std::iota(world.begin(), world.end(), 0);
  ledger_.sets.emplace(
      kWorldSet, ProcessSet(std::move(world), ledger_.rank, ledger_.place));
}

void Vertex::Admit(Entry entry) {
  if (!AdmitLocally(&entry)) return;
  if (entry.record.kind == OpKind::kJoin) {
    const int32_t set = entry.set;
    entry.name = kJoinName;
    ledger_.want_join.emplace(set, std::move(entry));
    return TryJoin(set);
  }
  Key key{entry.set, entry.name};
  auto& waiting = ledger_.queue[key];
  // A call that was refused or given up is complete for its caller, though it
  // still waits for its turn: a step that failed may be made again.
  const bool open =
      std::any_of(waiting.begin(), waiting.end(),
                  [](const Entry& earlier) { return !IsAnswered(earlier); });
  if (open || IsExecuting(key)) {
    entry.refusal = "duplicate name: '" + entry.name +
                    "' was submitted again before the first was complete; "
                    "give concurrent collectives different names";
  }
  if (!entry.refusal.empty()) {
    CompleteEntry(&entry, InvalidArgument(entry.refusal));
  }
  waiting.push_back(std::move(entry));
  if (waiting.size() == 1) CastVote(key, waiting.front());
}

bool Vertex::IsExecuting(const Key& key) const {
  const auto [begin, end] = ledger_.executing.equal_range(key);
  return std::any_of(begin, end, [](const auto& one) {
    const auto& caller = one.second.caller;
    return caller == nullptr || !caller->gone();
  });
}

// False if the entry was completed here, because no other rank can be waiting
// for it.
bool Vertex::AdmitLocally(Entry* entry) {
  if (!ended_.ok()) {
    CompleteEntry(entry, through_ >= 0 ? ClosedStatus({entry->set, entry->name})
                                       : ended_);
    return false;
  }
  const std::string set_text = "process set " + std::to_string(entry->set);
  const auto set = ledger_.sets.find(entry->set);
  if (set == ledger_.sets.end()) {
    const bool removed = ledger_.gone.count(entry->set) > 0;
    CompleteEntry(entry, removed
                             ? RemovedStatus(entry->set)
                             : InvalidArgument(set_text + " does not exist"));
    return false;
  }
  if (!set->second.member) {
    CompleteEntry(entry, InvalidArgument(RankText(ledger_.rank) +
                                         " is no member of " + set_text));
    return false;
  }
  if (ledger_.want_join.count(entry->set) > 0 ||
      ledger_.queue.count({entry->set, kJoinName}) > 0) {
    CompleteEntry(entry,
                  FailedPrecondition(RankText(ledger_.rank) +
                                     " has joined and cannot submit '" +
                                     entry->name + "' before join() returns"));
    return false;
  }
  return true;
}

// Join is voted when nothing of this rank in that set is still unvoted: its
// vote counts for everything that others have open.
void Vertex::TryJoin(int32_t set) {
  const auto join = ledger_.want_join.find(set);
  if (join == ledger_.want_join.end()) return;
  for (const auto& [key, waiting] : ledger_.queue) {
    if (key.first == set && waiting.size() > 1) return;
  }
  const Key key{set, kJoinName};
  auto& waiting = ledger_.queue[key];
  waiting.push_back(std::move(join->second));
  ledger_.want_join.erase(join);
  CastVote(key, waiting.front());
}

void Vertex::CastVote(const Key& key, const Entry& entry) {
  Vote vote;
  vote.first = {ledger_.rank, EncodeRecord(entry.record)};
  vote.last = ledger_.rank;
  const auto set = ledger_.sets.find(key.first);
  vote.step = set == ledger_.sets.end()
                  ? entry.stamp
                  : set->second.SinceJoin(key.second, entry.stamp);
  if (!entry.refusal.empty()) vote.refusal = {ledger_.rank, entry.refusal};
  Count(ledger_.rank, key, vote);
}

void Vertex::Count(int child, const Key& key, const Vote& vote) {
  const auto found = ledger_.sets.find(key.first);
  if (!ended_.ok() || found == ledger_.sets.end()) return;
  ProcessSet& set = found->second;
  Tally& tally = ledger_.tallies[key];
  tally.vote = tally.voted.empty() ? vote : Merge(tally.vote, vote);
  if (!tally.voted.insert(child).second) {
    return Bug("two votes for '" + key.second + "' from " + RankText(child));
  }
  if (key.second != kJoinName) return Settle(key);

  // What is open is settled before the join is passed on: otherwise the parent
  // counts this child as joined, finishes without its vote, and takes the late
  // vote for one of the next instance.
  set.joined.insert(child);
  std::vector<Key> open;
  for (const auto& [other, unused] : ledger_.tallies) {
    if (other.first == key.first && other.second != kJoinName) {
      open.push_back(other);
    }
  }
  for (const Key& other : open) Settle(other);
  Settle(key);
}

// A child without members, or one that has joined, counts as having voted.
bool Vertex::Complete(const ProcessSet& set, const Tally& tally) const {
  for (const auto& [child, members] : set.need) {
    if (tally.voted.count(child) == 0 && set.joined.count(child) == 0) {
      return false;
    }
  }
  return true;
}

void Vertex::Settle(const Key& key) {
  const auto it = ledger_.tallies.find(key);
  const ProcessSet& set = ledger_.sets.at(key.first);
  if (it == ledger_.tallies.end() || !Complete(set, it->second)) return;
  Vote vote = std::move(it->second.vote);
  // Who voted before it joined takes part with its data.
  if (it->second.voted.size() < set.need.size()) vote.joined = true;
  ledger_.tallies.erase(it);
  if (set.covered) {
    ledger_.ready.emplace(key, std::move(vote));
    stall_.Forget(key);
  } else {
    SendVote(set, key, vote);
  }
}

void Vertex::SendVote(const ProcessSet& set, const Key& key, const Vote& vote) {
  Message message;
  message.kind = MessageKind::kVote;
  message.set = key.first;
  message.vote = vote;
  const bool plain = !vote.other.has_value() && !vote.refusal.has_value();
  if (plain) message.slot = set.slots.Find(key.second, vote.first.record);
  if (message.slot == kNoSlot) message.name = key.second;
  ledger_.passed_up.insert(key);
  host_->Send(ledger_.place.parent, EncodeMessage(message));
}

void Vertex::TakeVote(int child, Message message) {
  const auto set = ledger_.sets.find(message.set);
  if (set == ledger_.sets.end()) {
    if (ledger_.gone.count(message.set) > 0) return;  // was on its way
    return Bug("a vote for unknown process set " + std::to_string(message.set));
  }
  if (message.slot != kNoSlot) {
    const SlotTable::Slot* slot = set->second.slots.Get(message.slot);
    if (slot == nullptr) {
      return Bug("a vote for unknown slot " + std::to_string(message.slot));
    }
    message.name = slot->name;
    message.vote.first.record = slot->record;
  }
  Count(child, {message.set, message.name}, message.vote);
}

void Vertex::TakeLeave(const Message& message) {
  if (ledger_.place.parent >= 0) {
    return host_->Send(ledger_.place.parent, EncodeMessage(message));
  }
  FrameEntry close;
  close.close = true;
  close.last = message.rank;
  close.error = RankText(message.rank) + " left: " + message.text;
  Emit({std::move(close)});
}

void Vertex::Receive(int neighbour, std::string_view bytes, int64_t now_ns) {
  if (!ended_.ok()) return;
  Message message;
  if (const Status status = DecodeMessage(bytes, &message); !status.ok()) {
    return Bug(status.message());
  }
  switch (message.kind) {
    case MessageKind::kVote:
      return TakeVote(neighbour, std::move(message));
    case MessageKind::kFrame:
      return TakeFrame(std::move(message.frame));
    case MessageKind::kLeave:
      return TakeLeave(message);
    case MessageKind::kAsk:
      return stall_.OnAsk(message, now_ns);
    case MessageKind::kRoll:
      return stall_.OnRoll(message, now_ns);
    case MessageKind::kAnswer:
      return stall_.OnAnswer(message, now_ns);
  }
}

void Vertex::Finished(const Key& key) {
  const auto first = ledger_.executing.lower_bound(key);
  if (first != ledger_.executing.end() && first->first == key) {
    ledger_.executing.erase(first);
  }
  finished_any_ = true;
}

void Vertex::Tick(int64_t now_ns) {
  // Join waits for others to finish their work: as long as they do, it is no
  // stall.
  for (const int32_t set : std::exchange(active_, {})) {
    const auto join = ledger_.queue.find({set, kJoinName});
    if (join != ledger_.queue.end()) join->second.front().submitted_ns = now_ns;
  }
  // What is in order waits for what is before it: as long as anything moves, it
  // is no stall.
  const uint64_t moved = host_->Moved();
  const bool moves = std::exchange(finished_any_, false) ||
                     std::exchange(moved_, moved) != moved;
  if (moves) ledger_.moved_ns = now_ns;
  for (auto& [key, one] : ledger_.executing) {
    if (moves || one.since_ns == 0) one.since_ns = now_ns;
  }
  if (ended_.ok() || !ledger_.executing.empty()) stall_.Tick(now_ns);
}

void Vertex::Leave(const std::string& reason) {
  if (!ended_.ok()) return;
  Message leave;
  leave.kind = MessageKind::kLeave;
  leave.rank = ledger_.rank;
  leave.text = reason;
  TakeLeave(leave);
}

void Vertex::Abort(const Status& status) {
  ended_ = status;
  FailQueued(status);
}

bool Vertex::RelaysForOthers() const {
  const auto others = [this](const Key& key) {
    return !ledger_.sets.at(key.first).member;
  };
  return std::any_of(ledger_.tallies.begin(), ledger_.tallies.end(),
                     [&](const auto& tally) { return others(tally.first); }) ||
         std::any_of(ledger_.passed_up.begin(), ledger_.passed_up.end(),
                     others);
}

void Vertex::FailQueued(const Status& status) {
  stall_.ForgetAll();
  ledger_.tallies.clear();
  ledger_.ready.clear();
  ledger_.passed_up.clear();
  for (auto& [key, waiting] : ledger_.queue) {
    const Status told = through_ >= 0 ? ClosedStatus(key) : status;
    for (Entry& entry : waiting) CompleteEntry(&entry, told);
  }
  ledger_.queue.clear();
  for (auto& [set, entry] : ledger_.want_join) CompleteEntry(&entry, status);
  ledger_.want_join.clear();
}

// A rank that was through has made fewer calls under this name. Where it left
// one out, each of its calls after that has met another rank's earlier one:
// that shows here, and nowhere before.
Status Vertex::ClosedStatus(const Key& key) const {
  const auto set = ledger_.sets.find(key.first);
  if (set == ledger_.sets.end() || !set->second.slots.Knows(key.second)) {
    return ended_;
  }
  const std::vector<int>& members = *set->second.members;
  if (!std::binary_search(members.begin(), members.end(), through_)) {
    return ended_;
  }
  return Aborted(ended_.message() + "; '" + key.second +
                 "', which has run before, has not been called as "
                 "often on all ranks: if one of them left out a call, results "
                 "since then are of calls that do not belong together");
}

void Vertex::CompleteEntry(Entry* entry, const Status& status) {
  if (entry->done.pending()) {
    host_->Complete(std::move(entry->done), status, 0);
  }
}

void Vertex::Bug(const std::string& text) {
  host_->Abort(
      AbortRecord::kFailed, ledger_.rank,
      "bug in tf_hvd, seen by " + RankText(ledger_.rank) + ": " + text);
}

// The same for requests that were pending and for those that come later: on
// other ranks they are one request.
Status Vertex::RemovedStatus(int32_t set) const {
  return FailedPrecondition("process set " + std::to_string(set) +
                            " was removed");
}

std::string Vertex::RankText(int rank) const {
  return "rank " + std::to_string(rank) + " (" +
         hosts_[static_cast<size_t>(rank)] + ")";
}

}  // namespace tf_hvd
