#include "runtime/agreement/controller.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "runtime/agreement/stall_text.h"

namespace tf_hvd {
namespace {

// The same text for requests pending at the removal and for later ones: a
// request may be pending on one rank and later on another.
Status RemovedStatus(int32_t set) {
  return FailedPrecondition("process set " + std::to_string(set) +
                            " was removed");
}

// True for changes that api/set_calls.cc allows: all ranks change process sets
// together, and a new set has ranks of the job, ascending, each once.
bool ChangesSetsRightly(const Entry& entry, int size) {
  const OpKind kind = entry.request.kind;
  const bool adds = kind == OpKind::kAddSet;
  if (!adds && kind != OpKind::kRemoveSet) return true;
  if (entry.set != kWorldSet) return false;
  if (!adds || !entry.local_error.ok()) return true;
  const auto& ranks = entry.request.ranks;
  return !ranks.empty() && ranks.front() >= 0 && ranks.back() < size &&
         std::adjacent_find(ranks.begin(), ranks.end(),
                            std::greater_equal<int32_t>()) == ranks.end();
}

}  // namespace

Controller::Controller(const Topology& topology, const StallOptions& stall,
                       ResponseRunner* runner, ControllerHost* host)
    : hosts_(topology.hosts),
      runner_(runner),
      host_(host),
      sets_(topology.rank, topology.Everyone(),
            PlaceOf(topology.rank, topology.nodes, topology.fan_out)),
      ordering_(&sets_),
      own_([host](Completion done, const Status& status) {
        host->Complete(std::move(done), status, 0);
      }),
      stall_(sets_, ordering_, own_, topology, stall, *runner, host),
      clock_(sets_.place().parent < 0,
             topology.NodeOf(std::max(sets_.place().parent, 0)) ==
                 topology.NodeOf(topology.rank)) {}

void Controller::Admit(Entry entry) {
  if (const Status status = Admissible(entry); !status.ok()) {
    return own_.Answer(&entry, status);
  }
  const auto size = static_cast<int>(sets_.world().members->size());
  if (!ChangesSetsRightly(entry, size)) {
    return Bug("'" + entry.name + "' is not a valid change of process sets");
  }
  own_.Add(std::move(entry));
  VoteInTurn();
}

// Not ok: no other rank can be waiting for the request.
Status Controller::Admissible(const Entry& entry) const {
  if (!ended_.ok()) return EndedStatus({entry.set, entry.name});
  const std::string set_text = "process set " + std::to_string(entry.set);
  const ProcessSet* const set = sets_.Find(entry.set);
  if (set == nullptr) {
    return sets_.Removed(entry.set)
               ? RemovedStatus(entry.set)
               : InvalidArgument(set_text + " does not exist");
  }
  if (!set->member) {
    return InvalidArgument(RankText(sets_.rank(), hosts_) +
                           " is not a member of " + set_text);
  }
  if (own_.HasJoined(entry.set)) {
    return FailedPrecondition(RankText(sets_.rank(), hosts_) +
                              " has joined and cannot submit '" + entry.name +
                              "' before join() returns");
  }
  return Status::Ok();
}

void Controller::VoteInTurn() {
  for (const Key& key : own_.TakeTurns()) CastVote(key, own_.Front(key));
}

void Controller::CastVote(const Key& key, const Entry& entry) {
  ProcessSet* const set = sets_.Find(key.first);
  Vote vote;
  SharedRequest request = set->slots.Share(key.second, entry.request);
  vote.step = set->SinceJoin(key.second, request, entry.step);
  if (entry.sources != nullptr) {
    vote.sources = {sets_.rank(), entry.sources->digest};
    if (told_.Add(key.first, entry.sources->digest, "")) {
      vote.told = {{entry.sources->digest, entry.sources->bytes}};
    }
  }
  vote.first = {sets_.rank(), std::move(request)};
  vote.last_rank = sets_.rank();
  if (!entry.local_error.ok()) {
    vote.local_error = {sets_.rank(), entry.local_error.message()};
  }
  Count(sets_.rank(), key, vote);
}

void Controller::Count(int child, const Key& key, const Vote& vote) {
  const ProcessSet* const set = sets_.Find(key.first);
  if (!ended_.ok() || set == nullptr) return;
  auto complete = votes_.Count(*set, child, key, vote);
  if (!complete.has_value()) {
    return Bug("two votes for '" + key.second + "' from " +
               RankText(child, hosts_));
  }
  for (CompleteVote& one : *complete) {
    if (!set->coordinated) {
      PassUp(*set, one.key, one.vote);
      continue;
    }
    stall_.Forget(one.key);
    ordering_.Add(one.key, std::move(one.vote));
  }
}

void Controller::PassUp(const ProcessSet& set, const Key& key,
                        const Vote& vote) {
  Message message;
  message.kind = MessageKind::kVote;
  message.set = key.first;
  message.vote = vote;
  const bool plain = !vote.other.has_value() && !vote.local_error.has_value();
  if (plain) message.slot = set.slots.Find(key.second, vote.first.request);
  if (message.slot == kNoSlot) message.name = key.second;
  host_->Send(sets_.place().parent, EncodeMessage(message));
}

void Controller::TakeVote(int child, Message message) {
  const ProcessSet* const set = sets_.Find(message.set);
  if (set == nullptr) {
    if (sets_.Removed(message.set)) return;  // the vote was in transit
    return Bug("a vote for unknown process set " + std::to_string(message.set));
  }
  if (message.slot != kNoSlot) {
    const SlotTable::Slot* slot = set->slots.Get(message.slot);
    if (slot == nullptr) {
      return Bug("a vote for unknown slot " + std::to_string(message.slot));
    }
    message.name = slot->name;
    message.vote.first.request = slot->request;
  }
  Count(child, {message.set, message.name}, message.vote);
}

void Controller::TakeLeave(const Message& message) {
  if (sets_.place().parent >= 0) {
    return host_->Send(sets_.place().parent, EncodeMessage(message));
  }
  std::vector<Response> batch(1);
  Response& close = batch.front();
  close.close = true;
  close.value = message.rank;
  close.through = message.through;
  close.error = RankText(message.rank, hosts_) + " left: " + message.text;
  Emit(std::move(batch));
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
      return stall_.OnQuery(std::move(message), now_ns);
    case MessageKind::kAnswer:
      return stall_.OnAnswer(neighbour, message, now_ns);
    case MessageKind::kAskClock:
      return AnswerClock(neighbour, message, now_ns);
    case MessageKind::kClock:
      return clock_.Take(message.clock, now_ns);
  }
}

void Controller::AskClock(int64_t now_ns) {
  Message question;
  question.kind = MessageKind::kAskClock;
  question.clock = clock_.Ask(now_ns);
  host_->Send(sets_.place().parent, EncodeMessage(question));
}

void Controller::AnswerClock(int child, const Message& question,
                             int64_t now_ns) {
  Message answer;
  answer.kind = MessageKind::kClock;
  answer.clock = clock_.Answer(question.clock, now_ns);
  host_->Send(child, EncodeMessage(answer));
}

void Controller::Tick(int64_t now_ns) {
  if (ended_.ok() && now_ns >= clock_.due_ns()) AskClock(now_ns);
  own_.NoteProgress(runner_->moved(), now_ns);
  if (ended_.ok() || !own_.executing().empty()) stall_.Tick(now_ns);
}

bool Controller::EmitReady() {
  // Waiting for the executor makes batches larger: the next one fills
  // meanwhile.
  if (ordering_.empty() || !ended_.ok() || runner_->Backlog() > 1) return false;
  Emit(ordering_.TakeBatch());
  return true;
}

void Controller::TakeResponses(std::vector<Response> batch) {
  for (Response& response : batch) {
    if (response.close || response.slot == kNoSlot || response.define) continue;
    const ProcessSet* const set = sets_.Find(response.key.first);
    const SlotTable::Slot* slot =
        set == nullptr ? nullptr : set->slots.Get(response.slot);
    if (slot == nullptr) {
      return Bug("a batch with unknown slot " + std::to_string(response.slot) +
                 " of process set " + std::to_string(response.key.first));
    }
    response.key.second = slot->name;
    response.request = slot->request;
  }
  Emit(std::move(batch));
}

void Controller::Emit(std::vector<Response> batch) {
  if (auto first = ordering_.TakeBefore(batch); !first.empty()) {
    Emit(std::move(first));
  }
  Forward(batch);
  Apply(std::move(batch));
}

void Controller::Forward(const std::vector<Response>& batch) {
  ordering_.Forward(batch, [this](int child, std::string_view message) {
    host_->Send(child, message);
  });
}

void Controller::Apply(std::vector<Response> batch) {
  std::vector<Response> mine;
  for (Response& response : batch) {
    if (response.close) {
      Close(response);
      break;
    }
    ApplyResponse(std::move(response), &mine);
  }
  if (!mine.empty()) runner_->Add(std::move(mine));
  VoteInTurn();
}

void Controller::ApplyResponse(Response response, std::vector<Response>* mine) {
  ProcessSet* const set = sets_.Find(response.key.first);
  if (set == nullptr) return;
  if (response.define && !set->slots.Define(response.slot, response.key.second,
                                            response.request)) {
    return Bug("slot " + std::to_string(response.slot) + " is out of step");
  }
  votes_.Ordered(response.key);
  if (response.key.second == kJoinName) set->JoinEnded();

  const bool member = set->member;
  if (member) {
    response.ranks = set->members;
    response.own = own_.Ordered(response.key);
  }
  if (response.error.empty())
    ApplySetChange(response);  // `set` may be destroyed
  if (member) mine->push_back(std::move(response));
}

void Controller::ApplySetChange(const Response& response) {
  const Request& request = *response.request;
  if (request.kind == OpKind::kRemoveSet) return RemoveSet(request.removed_set);
  if (request.kind != OpKind::kAddSet) return;
  const int32_t number = response.value;
  const ProcessSet& added =
      sets_.Add(number, {request.ranks.begin(), request.ranks.end()});
  ordering_.SetAdded(number);
  host_->SetAdded(number, added.members);
}

// Each request of the set precedes the removal on all members, or on none.
void Controller::RemoveSet(int32_t set) {
  if (!sets_.Remove(set)) return;
  const Status status = RemovedStatus(set);
  votes_.DropSet(set);
  ordering_.DropSet(set);
  own_.FailSet(set, status);
  stall_.ForgetSet(set);
  host_->SetRemoved(set);
}

void Controller::Leave(const std::string& reason, bool through) {
  if (!ended_.ok()) return;
  Message leave;
  leave.kind = MessageKind::kLeave;
  leave.rank = sets_.rank();
  leave.text = reason;
  leave.through = through;
  TakeLeave(leave);
}

void Controller::Close(const Response& close) {
  ended_ = Aborted(close.error);
  if (close.through) through_ = close.value;
  FailAll();
}

void Controller::Abort(const Status& status) {
  ended_ = status;
  FailAll();
}

void Controller::FailAll() {
  stall_.ForgetAll();
  votes_.Clear();
  ordering_.Clear();
  own_.FailAll([this](const Key& key) { return EndedStatus(key); });
}

// A rank that ended normally has made fewer calls than this one. If it skipped
// a call under a name that is used again, each of its later calls was matched
// with another rank's earlier one. That becomes visible only here. The text is
// the same for a call before the end and after it, so that all ranks report the
// same.
Status Controller::EndedStatus(const Key& key) const {
  const ProcessSet* const set = sets_.Find(key.first);
  if (through_ < 0 || set == nullptr) return ended_;
  const std::vector<int>& members = *set->members;
  if (!std::binary_search(members.begin(), members.end(), through_)) {
    return ended_;
  }
  const bool again = set->slots.Knows(key.second);
  return Aborted(
      ended_.message() + "; " + Shown(key.second) +
      (again ? ", which has run before, was not called the same number of "
               "times on all ranks: if one rank skipped a call, every result "
               "since then combines calls that do not belong together"
             : " still needed it"));
}

void Controller::Bug(const std::string& text) {
  host_->Abort(
      AbortRecord::kFailed, sets_.rank(),
      "bug in tf_hvd, seen by " + RankText(sets_.rank(), hosts_) + ": " + text);
}

}  // namespace tf_hvd
