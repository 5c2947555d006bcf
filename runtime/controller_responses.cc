// The second half of Controller: requests that are in order, on their way down.
#include <algorithm>
#include <cstddef>
#include <functional>
#include <tuple>
#include <utility>

#include "runtime/controller.h"

namespace tf_hvd {
namespace {

// Frames are sorted so that all ranks fuse alike; joins come last, since what
// was open when the last rank joined still belongs before its end.
bool FrameOrder(const Response& a, const Response& b) {
  const bool a_join = a.name == kJoinName;
  const bool b_join = b.name == kJoinName;
  return std::tie(a_join, a.set, a.slot, a.name) <
         std::tie(b_join, b.set, b.slot, b.name);
}

OpKind KindOf(const std::string& request) {
  // The first byte of EncodeRequest.
  return static_cast<OpKind>(static_cast<uint8_t>(request[0]));
}

// Why a change of process sets cannot be made; empty if it can, or if the
// request is none.
std::string SetChangeError(const ControllerState& state, int32_t set,
                           const Request& request) {
  if (request.kind != OpKind::kAddSet && request.kind != OpKind::kRemoveSet) {
    return "";
  }
  if (set != kWorldSet) return "process sets are changed by all ranks together";
  if (request.kind == OpKind::kRemoveSet) {
    if (request.set == kWorldSet) {
      return "process set 0, which is all ranks, cannot be removed";
    }
    return state.sets.count(request.set) > 0
               ? ""
               : "there is no process set " + std::to_string(request.set);
  }
  const auto& ranks = request.ranks;
  const auto& world = *state.sets.at(kWorldSet).members;
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

bool EndsSomething(const Response& entry) {
  return entry.close ||
         (entry.error.empty() && KindOf(entry.request) == OpKind::kRemoveSet);
}

}  // namespace

bool Controller::EmitReady() {
  // Waiting for the executor is what makes batches big: the next one fills
  // meanwhile.
  if (state_.ready.empty() || !ended_.ok() || host_->Backlog() > 1) {
    return false;
  }
  EmitReadyNow();
  return true;
}

void Controller::EmitReadyNow() {
  std::vector<Response> batch;
  for (const auto& [key, vote] : state_.ready) {
    batch.push_back(MakeResponse(key, vote));
  }
  state_.ready.clear();
  std::sort(batch.begin(), batch.end(), FrameOrder);
  Emit(std::move(batch));
}

Response Controller::MakeResponse(const Key& key, const Vote& vote) {
  Response entry;
  entry.set = key.first;
  entry.name = key.second;
  entry.request = vote.first.request;
  entry.error = Verdict(key.second, vote);
  Request request;
  if (entry.error.empty() && DecodeRequest(entry.request, &request).ok()) {
    entry.error = SetChangeError(state_, key.first, request);
  }
  entry.joined = vote.joined;
  entry.last = vote.last;
  if (!entry.error.empty()) return entry;
  if (KindOf(entry.request) == OpKind::kAddSet) entry.last = next_set_++;
  SlotTable& slots = state_.sets.at(key.first).slots;
  entry.slot = slots.Find(entry.name, entry.request);
  if (entry.slot == kNoSlot && entry.name != kJoinName) {
    entry.slot = slots.Offer(entry.name);
    entry.define = entry.slot != kNoSlot;
  }
  return entry;
}

void Controller::TakeResponses(std::vector<Response> batch) {
  for (Response& entry : batch) {
    if (entry.close || entry.slot == kNoSlot || entry.define) continue;
    const auto set = state_.sets.find(entry.set);
    const SlotTable::Slot* slot =
        set == state_.sets.end() ? nullptr : set->second.slots.Get(entry.slot);
    if (slot == nullptr) {
      return Bug("a batch with unknown slot " + std::to_string(entry.slot) +
                 " of process set " + std::to_string(entry.set));
    }
    entry.name = slot->name;
    entry.request = slot->request;
  }
  Emit(std::move(batch));
}

void Controller::Emit(std::vector<Response> batch) {
  // What is ready here was complete before the end arrived: it goes first.
  if (!state_.ready.empty() &&
      std::any_of(batch.begin(), batch.end(), EndsSomething)) {
    EmitReadyNow();
  }
  Forward(batch);
  Apply(batch);
}

void Controller::Forward(const std::vector<Response>& batch) {
  BatchEncoder encoder(batch);
  for (const int child : state_.place.children) {
    std::vector<size_t> places;
    for (size_t i = 0; i < batch.size(); ++i) {
      const Response& entry = batch[i];
      const auto set = state_.sets.find(entry.set);
      const bool concerned =
          entry.close || entry.set == kWorldSet ||
          (set != state_.sets.end() && set->second.need.count(child) > 0);
      if (concerned) places.push_back(i);
    }
    if (!places.empty()) host_->Send(child, encoder.Encode(places));
  }
  state_.responses_encoded += encoder.responses_encoded();
}

void Controller::Apply(const std::vector<Response>& batch) {
  std::vector<Task> runs;
  std::vector<Key> popped;
  for (const Response& entry : batch) {
    if (entry.close) {
      Close(entry);
      break;
    }
    ApplyResponse(entry, &runs, &popped);
  }
  if (!runs.empty()) host_->Execute(std::move(runs));
  for (const Key& key : popped) {
    const auto waiting = state_.queue.find(key);
    if (waiting != state_.queue.end()) {
      CastVote(key, waiting->second.front());
    }
  }
  std::vector<int32_t> joins;
  for (const auto& [set, unused] : state_.want_join) joins.push_back(set);
  for (const int32_t set : joins) TryJoin(set);
}

void Controller::ApplyResponse(const Response& entry, std::vector<Task>* runs,
                               std::vector<Key>* popped) {
  const auto found = state_.sets.find(entry.set);
  if (found == state_.sets.end()) return;
  ProcessSet& set = found->second;
  if (entry.define &&
      !set.slots.Define(entry.slot, entry.name, entry.request)) {
    return Bug("slot " + std::to_string(entry.slot) + " is out of step");
  }
  state_.passed_up.erase({entry.set, entry.name});
  if (entry.name == kJoinName) {
    set.joined.clear();
    set.has_joined = true;
    set.first_steps.clear();
  }
  active_.insert(entry.set);

  Task run;
  if (const Status status = DecodeRequest(entry.request, &run.request);
      !status.ok()) {
    return Bug(status.message());
  }
  if (set.member) {
    run.set = entry.set;
    run.name = entry.name;
    run.error = entry.error;
    run.last = entry.last;
    run.ranks = set.members;
    run.is_root = run.request.root == state_.rank;
    const Key key{entry.set, entry.name};
    const auto waiting = state_.queue.find(key);
    if (waiting != state_.queue.end()) {
      Entry own = std::move(waiting->second.front());
      waiting->second.pop_front();
      if (waiting->second.empty()) state_.queue.erase(waiting);
      popped->push_back(key);
      if (own.done.pending()) {
        state_.executing.emplace(key, Executing{0, own.caller});
        run.own = std::move(own);
      }
    }
  }
  if (entry.error.empty()) ApplySetChange(entry, run.request);
  if (run.ranks != nullptr) runs->push_back(std::move(run));
}

void Controller::ApplySetChange(const Response& entry, const Request& request) {
  if (request.kind == OpKind::kRemoveSet) return RemoveSet(request.set);
  if (request.kind != OpKind::kAddSet) return;
  const auto added = state_.sets.emplace(
      entry.last, ProcessSet({request.ranks.begin(), request.ranks.end()},
                             state_.rank, state_.place));
  // Numbers were given in the order of names, which is not that of the batch.
  next_set_ = std::max(next_set_, entry.last + 1);
  host_->SetAdded(entry.last, added.first->second.members);
}

// Each request of the set either is before this in the order on all members,
// or on none.
void Controller::RemoveSet(int32_t set) {
  if (state_.sets.erase(set) == 0) return;
  state_.gone.insert(set);
  const Status status = RemovedStatus(set);
  const auto drop = [set](auto* table) {
    for (auto it = table->begin(); it != table->end();) {
      it = it->first.first == set ? table->erase(it) : std::next(it);
    }
  };
  drop(&state_.tallies);
  drop(&state_.ready);
  for (auto it = state_.passed_up.begin(); it != state_.passed_up.end();) {
    it = it->first == set ? state_.passed_up.erase(it) : std::next(it);
  }
  for (auto& [key, waiting] : state_.queue) {
    if (key.first != set) continue;
    for (Entry& entry : waiting) CompleteEntry(&entry, status);
  }
  drop(&state_.queue);
  if (const auto join = state_.want_join.find(set);
      join != state_.want_join.end()) {
    CompleteEntry(&join->second, status);
    state_.want_join.erase(join);
  }
  stall_.ForgetSet(set);
  host_->SetRemoved(set);
}

void Controller::Close(const Response& close) {
  const std::string& text = close.error;
  ended_ = Aborted(text);
  if (EndsWith(text, ": exit") || EndsWith(text, ": shutdown()")) {
    through_ = close.last;
  }
  FailQueued(ended_);
}

}  // namespace tf_hvd
