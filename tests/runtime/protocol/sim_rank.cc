#include "tests/runtime/protocol/sim_rank.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "tests/runtime/protocol/sim_world.h"

namespace tf_hvd::protocol_test {
namespace {

bool MovesData(OpKind kind) {
  return kind == OpKind::kAllreduce || kind == OpKind::kAllgather ||
         kind == OpKind::kBroadcast;
}

}  // namespace

SimRank::SimRank(SimWorld* world, const Topology& topology, bool steps_inside,
                 int slowness)
    : world_(world),
      rank_(topology.rank),
      steps_inside_(steps_inside),
      slowness_(slowness),
      controller_(topology, StallLimits(), this, this) {}

void SimRank::Submit(Entry entry) {
  submitted_.push_back(std::move(entry));
  Poke();
}

void SimRank::Deliver(int from, std::string message) {
  if (!alive_) return;
  inbox_.emplace_back(from, std::move(message));
  Poke();
}

void SimRank::Tick() {
  if (alive_) controller_.Tick(world_->events()->now());
  WatchDue();
}

// A rank sleeps at most until others wait for its message.
void SimRank::WatchDue() {
  const int64_t due_ns = controller_.due_ns();
  if (due_ns == std::numeric_limits<int64_t>::max() || due_ns == watched_ns_) {
    return;
  }
  watched_ns_ = due_ns;
  world_->events()->At(std::max(due_ns, world_->events()->now()), [this] {
    if (controller_.due_ns() <= world_->events()->now()) Tick();
  });
}

void SimRank::Leave(const std::string& reason, bool through) {
  leaving_ = reason;
  through_ = through;
  Poke();
}

// A rank polls some time after there is something to see.
void SimRank::Poke() {
  if (scheduled_ || !alive_) return;
  scheduled_ = true;
  const int64_t longest = running_ ? 200 * kUs : 2 * kUs;
  world_->events()->After(world_->random()->Between(100, longest) * slowness_,
                          [this] { Step(); });
}

void SimRank::Step() {
  scheduled_ = false;
  if (!alive_ || Inside()) return;
  if (!leaving_.empty()) {
    controller_.Leave(std::exchange(leaving_, ""), through_);
    world_->AwaitClose(rank_);
  }
  while (!submitted_.empty()) {
    Entry entry = std::move(submitted_.front());
    submitted_.pop_front();
    controller_.Admit(std::move(entry));
  }
  while (!inbox_.empty() && !Inside()) {
    const auto [from, message] = std::move(inbox_.front());
    inbox_.pop_front();
    controller_.Receive(from, message, world_->events()->now());
    if (!steps_inside_) RunExecutor();
  }
  if (!Inside()) controller_.EmitReady();
  RunExecutor();
  WatchDue();
}

// If execution happens in place, messages that a controller sends after it has
// handed over a batch wait for that batch.
void SimRank::Send(int neighbour, std::string_view message) {
  world_->Sends(rank_, neighbour, message);
  if (Inside()) {
    held_.push_back({frames_given_, neighbour, std::string(message)});
  } else {
    world_->Carry(rank_, neighbour, std::string(message));
  }
}

void SimRank::SendHeld() {
  while (!held_.empty() && held_.front().batches <= frames_finished_) {
    Held held = std::move(held_.front());
    held_.pop_front();
    world_->Carry(rank_, held.neighbour, std::move(held.message));
  }
}

void SimRank::Add(std::vector<Response> batch) {
  std::deque<Response> runs;
  for (Response& run : batch) runs.push_back(std::move(run));
  batches_.push_back(std::move(runs));
  ++frames_given_;
}

void SimRank::RunExecutor() {
  const bool had_work = !batches_.empty();
  while (!running_ && !batches_.empty()) RunFront();
  if (had_work && batches_.empty()) Poke();
}

void SimRank::RunFront() {
  Response& run = batches_.front().front();
  const int32_t set = run.key.first;
  const OrderKey key{set, places_[set]++};
  world_->Executes(rank_, key, run);
  if (run.error.empty() && MovesData(run.request->kind)) {
    running_ = true;
    meeting_ = key;
    return world_->Meet(rank_, key, run);
  }
  End(&run, run.error.empty() ? Status::Ok() : FailedPrecondition(run.error));
  PopFront();
}

void SimRank::PopFront() {
  batches_.front().pop_front();
  if (!batches_.front().empty()) return;
  batches_.pop_front();
  ++frames_finished_;
  SendHeld();
}

void SimRank::MeetingEnded(const OrderKey& key) {
  if (!alive_ || !running_ || meeting_ != key) return;
  running_ = false;
  End(&batches_.front().front(), Status::Ok());
  PopFront();
  RunExecutor();
  Poke();
}

void SimRank::End(Response* run, const Status& status) {
  if (!run->own.has_value()) return;
  Entry own = std::move(*run->own);
  run->own.reset();
  controller_.Finished(run->key);
  Complete(std::move(own.done), status, run->value);
}

// Callers get their results some time after the progress lock is free.
void SimRank::Complete(Completion done, Status status, int32_t value) {
  const auto shared = std::make_shared<Completion>(std::move(done));
  world_->events()->After(
      world_->random()->Pick<int64_t>({0, kUs, kMs}),
      [shared, status, value] { shared->Fire(status, value); });
}

void SimRank::SetAdded(int32_t set, const SetMembers& members) {
  world_->SetAdded(set, *members);
}

void SimRank::SetRemoved(int32_t) {}

void SimRank::Warn(const std::string& text) {
  world_->Reported(text, /*fatal=*/false);
}

void SimRank::Abort(AbortRecord::Class error_class, int32_t rank,
                    const std::string& text) {
  if (error_class == AbortRecord::kFailed) {
    return world_->history()->Fail(text);
  }
  world_->Reported(text, /*fatal=*/true);
  if (world_->options().stall_closes) return Leave(text, false);
  world_->RaiseAbort(rank_, {error_class, rank, text});
}

void SimRank::AbortWith(const std::string& text) {
  if (!alive_ || (ended() && batches_.empty())) return;
  const Status status = Aborted(text);
  controller_.Abort(status);
  running_ = false;
  for (auto& batch : std::exchange(batches_, {})) {
    for (Response& run : batch) End(&run, status);
  }
  held_.clear();
  Poke();
}

}  // namespace tf_hvd::protocol_test
