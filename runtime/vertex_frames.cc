// The second half of Vertex: requests that are in order, on their way down.
#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include "runtime/vertex.h"

namespace tf_hvd {
namespace {

// Frames are sorted so that all ranks fuse alike; joins come last, since what
// was open when the last rank joined still belongs before its end.
bool FrameOrder(const FrameEntry& a, const FrameEntry& b) {
  const bool a_join = a.name == kJoinName;
  const bool b_join = b.name == kJoinName;
  return std::tie(a_join, a.set, a.slot, a.name) <
         std::tie(b_join, b.set, b.slot, b.name);
}

OpKind KindOf(const std::string& record) {
  // The first byte of EncodeRecord.
  return static_cast<OpKind>(static_cast<uint8_t>(record[0]));
}

// Why a change of process sets cannot be made; empty if it can, or if the
// request is none.
std::string SetChangeError(const Ledger& ledger, int32_t set,
                           const Record& record) {
  if (record.kind != OpKind::kAddSet && record.kind != OpKind::kRemoveSet) {
    return "";
  }
  if (set != kWorldSet) return "process sets are changed by all ranks together";
  if (record.kind == OpKind::kRemoveSet) {
    if (record.set == kWorldSet) {
      return "process set 0, which is all ranks, cannot be removed";
    }
    return ledger.sets.count(record.set) > 0
               ? ""
               : "there is no process set " + std::to_string(record.set);
  }
  const auto& ranks = record.ranks;
  const auto& world = *ledger.sets.at(kWorldSet).members;
  const bool ascending =
      std::adjacent_find(ranks.begin(), ranks.end(),
                         std::greater_equal<int32_t>()) == ranks.end();
  if (!ranks.empty() && ascending && ranks.front() >= 0 &&
      ranks.back() <= world.back()) {
    return "";
  }
  return "a process set needs at least one rank, each once, between 0 and " +
         std::to_string(world.back());
}

bool EndsWith(const std::string& text, const std::string& end) {
  return text.size() >= end.size() &&
         text.compare(text.size() - end.size(), end.size(), end) == 0;
}

bool EndsSomething(const FrameEntry& entry) {
  return entry.close ||
         (entry.error.empty() && KindOf(entry.record) == OpKind::kRemoveSet);
}

}  // namespace

bool Vertex::EmitReady() {
  // Waiting for the executor is what makes frames big: the next one fills
  // meanwhile.
  if (ledger_.ready.empty() || !ended_.ok() || host_->Backlog() > 1) {
    return false;
  }
  EmitReadyNow();
  return true;
}

void Vertex::EmitReadyNow() {
  std::vector<FrameEntry> frame;
  for (const auto& [key, vote] : ledger_.ready) {
    frame.push_back(MakeEntry(key, vote));
  }
  ledger_.ready.clear();
  std::sort(frame.begin(), frame.end(), FrameOrder);
  Emit(std::move(frame));
}

FrameEntry Vertex::MakeEntry(const Key& key, const Vote& vote) {
  FrameEntry entry;
  entry.set = key.first;
  entry.name = key.second;
  entry.record = vote.first.record;
  entry.error = Verdict(key.second, vote);
  Record record;
  if (entry.error.empty() && DecodeRecord(entry.record, &record).ok()) {
    entry.error = SetChangeError(ledger_, key.first, record);
  }
  entry.joined = vote.joined;
  entry.last = vote.last;
  if (!entry.error.empty()) return entry;
  if (KindOf(entry.record) == OpKind::kAddSet) entry.last = next_set_++;
  SlotTable& slots = ledger_.sets.at(key.first).slots;
  entry.slot = slots.Find(entry.name, entry.record);
  if (entry.slot == kNoSlot && entry.name != kJoinName) {
    entry.slot = slots.Offer(entry.name);
    entry.define = entry.slot != kNoSlot;
  }
  return entry;
}

void Vertex::TakeFrame(std::vector<FrameEntry> frame) {
  for (FrameEntry& entry : frame) {
    if (entry.close || entry.slot == kNoSlot || entry.define) continue;
    const auto set = ledger_.sets.find(entry.set);
    const SlotTable::Slot* slot =
        set == ledger_.sets.end() ? nullptr : set->second.slots.Get(entry.slot);
    if (slot == nullptr) {
      return Bug("a frame with unknown slot " + std::to_string(entry.slot) +
                 " of process set " + std::to_string(entry.set));
    }
    entry.name = slot->name;
    entry.record = slot->record;
  }
  Emit(std::move(frame));
}

void Vertex::Emit(std::vector<FrameEntry> frame) {
  // What is ready here was complete before the end arrived: it goes first.
  if (!ledger_.ready.empty() &&
      std::any_of(frame.begin(), frame.end(), EndsSomething)) {
    EmitReadyNow();
  }
  Forward(frame);
  Apply(frame);
}

void Vertex::Forward(const std::vector<FrameEntry>& frame) {
  for (const int child : ledger_.place.children) {
    Message message;
    message.kind = MessageKind::kFrame;
    for (const FrameEntry& entry : frame) {
      const auto set = ledger_.sets.find(entry.set);
      const bool concerned =
          entry.close || entry.set == kWorldSet ||
          (set != ledger_.sets.end() && set->second.need.count(child) > 0);
      if (concerned) message.frame.push_back(entry);
    }
    if (!message.frame.empty()) host_->Send(child, EncodeMessage(message));
  }
}

void Vertex::Apply(const std::vector<FrameEntry>& frame) {
  std::vector<Run> runs;
  std::vector<Key> popped;
  for (const FrameEntry& entry : frame) {
    if (entry.close) {
      Close(entry);
      break;
    }
    ApplyEntry(entry, &runs, &popped);
  }
  if (!runs.empty()) host_->Execute(std::move(runs));
  for (const Key& key : popped) {
    const auto waiting = ledger_.queue.find(key);
    if (waiting != ledger_.queue.end()) {
      CastVote(key, waiting->second.front());
    }
  }
  std::vector<int32_t> joins;
  for (const auto& [set, unused] : ledger_.want_join) joins.push_back(set);
  for (const int32_t set : joins) TryJoin(set);
}

void Vertex::ApplyEntry(const FrameEntry& entry, std::vector<Run>* runs,
                        std::vector<Key>* popped) {
  const auto found = ledger_.sets.find(entry.set);
  if (found == ledger_.sets.end()) return;
  ProcessSet& set = found->second;
  if (entry.define && !set.slots.Define(entry.slot, entry.name, entry.record)) {
    return Bug("slot " + std::to_string(entry.slot) + " is out of step");
  }
  ledger_.passed_up.erase({entry.set, entry.name});
  if (entry.name == kJoinName) {
    set.joined.clear();
    set.has_joined = true;
    set.first_steps.clear();
  }
  active_.insert(entry.set);

  Run run;
  if (const Status status = DecodeRecord(entry.record, &run.record);
      !status.ok()) {
    return Bug(status.message());
  }
  if (set.member) {
    run.set = entry.set;
    run.name = entry.name;
    run.error = entry.error;
    run.last = entry.last;
    run.ranks = set.members;
    run.is_root = run.record.root == ledger_.rank;
    const Key key{entry.set, entry.name};
    const auto waiting = ledger_.queue.find(key);
    if (waiting != ledger_.queue.end()) {
      Entry own = std::move(waiting->second.front());
      waiting->second.pop_front();
      if (waiting->second.empty()) ledger_.queue.erase(waiting);
      popped->push_back(key);
      if (own.done.pending()) {
        ledger_.executing.emplace(key, Executing{0, own.caller});
        run.own = std::move(own);
      }
    }
  }
  if (entry.error.empty()) ApplySetChange(entry, run.record);
  if (run.ranks != nullptr) runs->push_back(std::move(run));
}

void Vertex::ApplySetChange(const FrameEntry& entry, const Record& record) {
  if (record.kind == OpKind::kRemoveSet) return RemoveSet(record.set);
  if (record.kind != OpKind::kAddSet) return;
  const std::vector<int> ranks(record.ranks.begin(), record.ranks.end());
  ledger_.sets.emplace(entry.last,
                       ProcessSet(ranks, ledger_.rank, ledger_.place));
  // Numbers were given in the order of names, which is not that of the frame.
  next_set_ = std::max(next_set_, entry.last + 1);
  host_->SetAdded(entry.last, ranks);
}

// Each request of the set either is before this in the order on all members,
// or on none.
void Vertex::RemoveSet(int32_t set) {
  if (ledger_.sets.erase(set) == 0) return;
  ledger_.gone.insert(set);
  const Status status = RemovedStatus(set);
  const auto drop = [set](auto* table) {
    for (auto it = table->begin(); it != table->end();) {
      it = it->first.first == set ? table->erase(it) : std::next(it);
    }
  };
  drop(&ledger_.tallies);
  drop(&ledger_.ready);
  for (auto it = ledger_.passed_up.begin(); it != ledger_.passed_up.end();) {
    it = it->first == set ? ledger_.passed_up.erase(it) : std::next(it);
  }
  for (auto& [key, waiting] : ledger_.queue) {
    if (key.first != set) continue;
    for (Entry& entry : waiting) CompleteEntry(&entry, status);
  }
  drop(&ledger_.queue);
  if (const auto join = ledger_.want_join.find(set);
      join != ledger_.want_join.end()) {
    CompleteEntry(&join->second, status);
    ledger_.want_join.erase(join);
  }
  stall_.ForgetSet(set);
  host_->SetRemoved(set);
}

void Vertex::Close(const FrameEntry& close) {
  const std::string& text = close.error;
  ended_ = Aborted(text);
  if (EndsWith(text, ": exit") || EndsWith(text, ": shutdown()")) {
    through_ = close.last;
  }
  FailQueued(ended_);
}

}  // namespace tf_hvd
