#include "runtime/controller.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tf_hvd {

Controller::Controller(const Topology& topology, const StallOptions& stall,
                       ControllerHost* host)
    : hosts_(topology.hosts),
      host_(host),
      stall_(state_, topology, stall, host) {
  state_.rank = topology.rank;
  state_.place = PlaceOf(topology.rank, topology.nodes, topology.fan_out);
  std::vector<int> world(static_cast<size_t>(topology.size));
  std::iota(world.begin(), world.end(), 0);
  state_.sets.emplace(kWorldSet,
                      ProcessSet(std::move(world), state_.rank, state_.place));
}

void Controller::Admit(Entry entry) {
  if (!AdmitLocally(&entry)) return;
  if (entry.request.kind == OpKind::kJoin) {
    const int32_t set = entry.set;
    entry.name = kJoinName;
    state_.want_join.emplace(set, std::move(entry));
    return TryJoin(set);
  }
  Key key{entry.set, entry.name};
  auto& waiting = state_.queue[key];
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

bool Controller::IsExecuting(const Key& key) const {
  const auto [begin, end] = state_.executing.equal_range(key);
  return std::any_of(begin, end, [](const auto& one) {
    const auto& caller = one.second.caller;
    return caller == nullptr || !caller->gone();
  });
}

// False if the entry was completed here, because no other rank can be waiting
// for it.
bool Controller::AdmitLocally(Entry* entry) {
  if (!ended_.ok()) {
    CompleteEntry(entry, through_ >= 0 ? ClosedStatus({entry->set, entry->name})
                                       : ended_);
    return false;
  }
  const std::string set_text = "process set " + std::to_string(entry->set);
  const auto set = state_.sets.find(entry->set);
  if (set == state_.sets.end()) {
    const bool removed = state_.gone.count(entry->set) > 0;
    CompleteEntry(entry, removed
                             ? RemovedStatus(entry->set)
                             : InvalidArgument(set_text + " does not exist"));
    return false;
  }
  if (!set->second.member) {
    CompleteEntry(entry, InvalidArgument(RankText(state_.rank, hosts_) +
                                         " is no member of " + set_text));
    return false;
  }
  if (state_.want_join.count(entry->set) > 0 ||
      state_.queue.count({entry->set, kJoinName}) > 0) {
    CompleteEntry(entry,
                  FailedPrecondition(RankText(state_.rank, hosts_) +
                                     " has joined and cannot submit '" +
                                     entry->name + "' before join() returns"));
    return false;
  }
  return true;
}

// Join is voted when nothing of this rank in that set is still unvoted: its
// vote counts for everything that others have open.
void Controller::TryJoin(int32_t set) {
  const auto join = state_.want_join.find(set);
  if (join == state_.want_join.end()) return;
  for (const auto& [key, waiting] : state_.queue) {
    if (key.first == set && waiting.size() > 1) return;
  }
  const Key key{set, kJoinName};
  auto& waiting = state_.queue[key];
  waiting.push_back(std::move(join->second));
  state_.want_join.erase(join);
  CastVote(key, waiting.front());
}

void Controller::CastVote(const Key& key, const Entry& entry) {
  Vote vote;
  vote.first = {state_.rank, EncodeRequest(entry.request)};
  vote.last = state_.rank;
  const auto set = state_.sets.find(key.first);
  vote.step = set == state_.sets.end()
                  ? entry.stamp
                  : set->second.SinceJoin(key.second, entry.stamp);
  if (!entry.refusal.empty()) vote.refusal = {state_.rank, entry.refusal};
  Count(state_.rank, key, vote);
}

void Controller::Count(int child, const Key& key, const Vote& vote) {
  const auto found = state_.sets.find(key.first);
  if (!ended_.ok() || found == state_.sets.end()) return;
  ProcessSet& set = found->second;
  Tally& tally = state_.tallies[key];
  tally.vote = tally.voted.empty() ? vote : Merge(tally.vote, vote);
  if (!tally.voted.insert(child).second) {
    return Bug("two votes for '" + key.second + "' from " +
               RankText(child, hosts_));
  }
  if (key.second != kJoinName) return Settle(key);

  // What is open is settled before the join is passed on: otherwise the parent
  // counts this child as joined, finishes without its vote, and takes the late
  // vote for one of the next instance.
  set.joined.insert(child);
  std::vector<Key> open;
  for (const auto& [other, unused] : state_.tallies) {
    if (other.first == key.first && other.second != kJoinName) {
      open.push_back(other);
    }
  }
  for (const Key& other : open) Settle(other);
  Settle(key);
}

// A child without members, or one that has joined, counts as having voted.
bool Controller::Complete(const ProcessSet& set, const Tally& tally) const {
  for (const auto& [child, members] : set.need) {
    if (tally.voted.count(child) == 0 && set.joined.count(child) == 0) {
      return false;
    }
  }
  return true;
}

void Controller::Settle(const Key& key) {
  const auto it = state_.tallies.find(key);
  const ProcessSet& set = state_.sets.at(key.first);
  if (it == state_.tallies.end() || !Complete(set, it->second)) return;
  Vote vote = std::move(it->second.vote);
  // Who voted before it joined takes part with its data.
  if (it->second.voted.size() < set.need.size()) vote.joined = true;
  state_.tallies.erase(it);
  if (set.covered) {
    state_.ready.emplace(key, std::move(vote));
    stall_.Forget(key);
  } else {
    SendVote(set, key, vote);
  }
}

void Controller::SendVote(const ProcessSet& set, const Key& key,
                          const Vote& vote) {
  Message message;
  message.kind = MessageKind::kVote;
  message.set = key.first;
  message.vote = vote;
  const bool plain = !vote.other.has_value() && !vote.refusal.has_value();
  if (plain) message.slot = set.slots.Find(key.second, vote.first.request);
  if (message.slot == kNoSlot) message.name = key.second;
  state_.passed_up.insert(key);
  host_->Send(state_.place.parent, EncodeMessage(message));
}

void Controller::TakeVote(int child, Message message) {
  const auto set = state_.sets.find(message.set);
  if (set == state_.sets.end()) {
    if (state_.gone.count(message.set) > 0) return;  // was on its way
    return Bug("a vote for unknown process set " + std::to_string(message.set));
  }
  if (message.slot != kNoSlot) {
    const SlotTable::Slot* slot = set->second.slots.Get(message.slot);
    if (slot == nullptr) {
      return Bug("a vote for unknown slot " + std::to_string(message.slot));
    }
    message.name = slot->name;
    message.vote.first.request = slot->request;
  }
  Count(child, {message.set, message.name}, message.vote);
}

void Controller::TakeLeave(const Message& message) {
  if (state_.place.parent >= 0) {
    return host_->Send(state_.place.parent, EncodeMessage(message));
  }
  Response close;
  close.close = true;
  close.last = message.rank;
  close.error = RankText(message.rank, hosts_) + " left: " + message.text;
  Emit({std::move(close)});
}

void Controller::Receive(int neighbour, std::string_view bytes,
                         int64_t now_ns) {
  if (!ended_.ok()) return;
  Message message;
  if (const Status status = DecodeMessage(bytes, &message); !status.ok()) {
    return Bug(status.message());
  }
  switch (message.kind) {
    case MessageKind::kVote:
      return TakeVote(neighbour, std::move(message));
    case MessageKind::kResponses:
      return TakeResponses(std::move(message.batch));
    case MessageKind::kLeave:
      return TakeLeave(message);
    case MessageKind::kAsk:
      return stall_.OnAsk(message, now_ns);
    case MessageKind::kQuery:
      return stall_.OnQuery(message, now_ns);
    case MessageKind::kAnswer:
      return stall_.OnAnswer(neighbour, message, now_ns);
  }
}

void Controller::Finished(const Key& key) {
  const auto first = state_.executing.lower_bound(key);
  if (first != state_.executing.end() && first->first == key) {
    state_.executing.erase(first);
  }
  finished_any_ = true;
}

void Controller::Tick(int64_t now_ns) {
  // Join waits for others to finish their work: as long as they do, it is no
  // stall.
  for (const int32_t set : std::exchange(active_, {})) {
    const auto join = state_.queue.find({set, kJoinName});
    if (join != state_.queue.end()) join->second.front().submitted_ns = now_ns;
  }
  // What is in order waits for what is before it: as long as anything moves, it
  // is no stall.
  const uint64_t moved = host_->Moved();
  const bool moves = std::exchange(finished_any_, false) ||
                     std::exchange(moved_, moved) != moved;
  if (moves) state_.moved_ns = now_ns;
  for (auto& [key, one] : state_.executing) {
    if (moves || one.since_ns == 0) one.since_ns = now_ns;
  }
  if (ended_.ok() || !state_.executing.empty()) stall_.Tick(now_ns);
}

void Controller::Leave(const std::string& reason) {
  if (!ended_.ok()) return;
  Message leave;
  leave.kind = MessageKind::kLeave;
  leave.rank = state_.rank;
  leave.text = reason;
  TakeLeave(leave);
}

void Controller::Abort(const Status& status) {
  ended_ = status;
  FailQueued(status);
}

bool Controller::RelaysForOthers() const {
  const auto others = [this](const Key& key) {
    return !state_.sets.at(key.first).member;
  };
  return std::any_of(state_.tallies.begin(), state_.tallies.end(),
                     [&](const auto& tally) { return others(tally.first); }) ||
         std::any_of(state_.passed_up.begin(), state_.passed_up.end(), others);
}

void Controller::FailQueued(const Status& status) {
  stall_.ForgetAll();
  state_.tallies.clear();
  state_.ready.clear();
  state_.passed_up.clear();
  for (auto& [key, waiting] : state_.queue) {
    const Status told = through_ >= 0 ? ClosedStatus(key) : status;
    for (Entry& entry : waiting) CompleteEntry(&entry, told);
  }
  state_.queue.clear();
  for (auto& [set, entry] : state_.want_join) CompleteEntry(&entry, status);
  state_.want_join.clear();
}

// A rank that was through has made fewer calls under this name. Where it left
// one out, each of its calls after that has met another rank's earlier one:
// that shows here, and nowhere before.
Status Controller::ClosedStatus(const Key& key) const {
  const auto set = state_.sets.find(key.first);
  if (set == state_.sets.end() || !set->second.slots.Knows(key.second)) {
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

void Controller::CompleteEntry(Entry* entry, const Status& status) {
  if (entry->done.pending()) {
    host_->Complete(std::move(entry->done), status, 0);
  }
}

void Controller::Bug(const std::string& text) {
  host_->Abort(
      AbortRecord::kFailed, state_.rank,
      "bug in tf_hvd, seen by " + RankText(state_.rank, hosts_) + ": " + text);
}

// The same for requests that were pending and for those that come later: on
// other ranks they are one request.
Status Controller::RemovedStatus(int32_t set) const {
  return FailedPrecondition("process set " + std::to_string(set) +
                            " was removed");
}

}  // namespace tf_hvd
