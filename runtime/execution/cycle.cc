#include "runtime/execution/cycle.h"

#include <algorithm>

#include "base/clock.h"

namespace tf_hvd {
namespace {

constexpr int64_t kTickNs = 100 * kMs;

StallOptions StallOptionsOf(const Config& config) {
  StallOptions options;
  options.warn_ns = config.stall_warn_ns;
  options.fail_ns = config.stall_fail_ns;
  options.stuck_ns = std::min(config.stall_stuck_ns, config.stall_fail_ns);
  // Short limits are for tests and impatient users: the grace and query times
  // are shortened as well.
  options.query_ns = std::min(options.query_ns, options.warn_ns);
  if (options.fail_ns > 0) {
    options.grace_ns = std::clamp(options.stuck_ns, kSecond, options.grace_ns);
  }
  return options;
}

}  // namespace

Cycle::Cycle(const Config& config, World* world, TensorQueue* queue,
             SetListener on_set, Recorder* recorder, MainThread* main_thread)
    : world_(world),
      queue_(queue),
      recorder_(recorder),
      main_thread_(main_thread),
      on_set_(std::move(on_set)),
      log_level_(config.log_level),
      executor_(world->backends(), config.fusion_threshold, this,
                recorder == nullptr ? nullptr : recorder->phases(),
                WarnForMachine(world->topology(), config.log_level)),
      controller_(world->topology(), StallOptionsOf(config), &executor_, this) {
  on_set_(kWorldSet, controller_.sets().world().members);
  const Topology& topology = world->topology();
  const TreePlace place =
      PlaceOf(topology.rank, topology.nodes, topology.fan_out);
  std::vector<int> neighbours = place.children;
  if (place.parent >= 0) neighbours.push_back(place.parent);
  for (const int neighbour : neighbours) {
    streams_.emplace_back(neighbour, world->edge(neighbour));
    polled_ = polled_ || streams_.back().polled();
  }
  if (topology.rank == 0 && topology.size > 1 &&
      log_level_ <= LogLevel::kInfo) {
    WriteLog(LogLevel::kInfo, topology.RankText(0),
             std::to_string(topology.size) +
                 " ranks, machines: " + std::to_string(topology.nodes.size()) +
                 "; tensors move " + world->DescribeData());
  }
}

bool Cycle::Step() {
  const int64_t now_ns = NowNs();
  LeaveIfAsked(now_ns);
  CheckAbort(now_ns);
  bool busy = false;
  for (Entry& entry : queue_->Drain()) {
    controller_.Admit(std::move(entry));
    busy = true;
  }
  for (MessageStream& stream : streams_) {
    busy |= stream.Pull([&](std::string_view message) {
      // With the current time, because clocks are compared by it.
      controller_.Receive(stream.peer(), message, NowNs());
    });
  }
  busy |= controller_.EmitReady();
  if (now_ns >= std::min(next_tick_ns_, controller_.due_ns())) {
    next_tick_ns_ = now_ns + kTickNs;
    // The reason is known: later findings must not replace it.
    if (!Aborting()) controller_.Tick(now_ns);
  }
  for (MessageStream& stream : streams_) busy |= stream.Push();
  CloseAtEnd(now_ns);
  return busy;
}

bool Cycle::Advance() {
  bool busy = Step();
  if (aborted()) {
    executor_.Fail(abort_status_);
    return busy;
  }
  Status status;
  busy |= executor_.Progress(&status);
  if (!status.ok() && !aborted()) {
    Abort(AbortRecord::kFailed, world_->topology().rank, status.message());
  }
  return busy;
}

void Cycle::CheckAbort(int64_t now_ns) {
  if (aborted()) return;
  if (end_.LeaveTimedOut(now_ns, executor_.HasWork(), executor_.moved())) {
    Abort(AbortRecord::kStalled, world_->topology().rank, LeaveTimeoutText());
  }
  const auto record = world_->PollAbort();
  if (!record.has_value()) return;
  // After the end of an orderly shutdown the other ranks may exit at any time.
  if (end_.closed() && !executor_.HasWork()) return;
  if (!end_.AbortHolds(now_ns)) return;
  abort_status_ = Aborted(record->text);
  Record(record->text);
  controller_.Abort(abort_status_);
}

void Cycle::AskToLeave(const std::string& reason, bool through) {
  const MutexLock lock(&leave_mutex_);
  if (!leave_asked_) {
    leave_reason_ = reason;
    leave_through_ = through;
  }
  leave_asked_ = true;
}

void Cycle::LeaveIfAsked(int64_t now_ns) {
  if (!leave_asked_ || end_.leaving()) return;
  end_.Leave(now_ns);
  {
    const MutexLock lock(&leave_mutex_);
    controller_.Leave(leave_reason_, leave_through_);
  }
  CloseAtEnd(now_ns);
}

void Cycle::CloseAtEnd(int64_t now_ns) {
  if (controller_.ended().ok()) return;
  if (!end_.closed()) Record(controller_.ended().message());
  end_.Close(now_ns);
}

void Cycle::Record(const std::string& end) {
  if (recorder_ != nullptr) recorder_->EndedFor(end);
}

std::string Cycle::LeaveTimeoutText() const {
  const Topology& topology = world_->topology();
  // The top of the tree closes immediately, so here this rank has a parent.
  const int silent =
      end_.closed() ? executor_.awaited() : controller_.sets().place().parent;
  std::string text = topology.RankText(topology.rank);
  text += end_.closed() ? " left while an operation was stuck"
                        : " left and the other ranks did not answer";
  if (silent >= 0) {
    text +=
        std::string(end_.closed() ? ": no data from " : ": no answer from ");
    text += topology.RankText(silent) +
            " (stopped, or its machine cannot be reached)";
  }
  return text;
}

bool Cycle::AtEnd() const {
  if (aborted()) return !executor_.HasWork();
  if (controller_.ended().ok() || executor_.HasWork()) return false;
  return !HasOutput() || !end_.OffersOutput(NowNs());
}

WaitState Cycle::StateOfWait(int64_t now_ns) const {
  WaitState state;
  state.has_outcomes = HasOutcomes();
  state.has_output = HasOutput();
  state.aborting = Aborting();
  state.waiting = controller_.Waiting();
  state.relays = controller_.RelaysForOthers();
  state.leaving = end_.leaving();
  state.moving = executor_.Moving();
  state.rings = state.moving && executor_.Rings();
  state.polled = polled_;
  if (!Aborting()) state.due_in_ns = controller_.due_ns() - now_ns;
  return state;
}

bool Cycle::HasOutput() const {
  return std::any_of(streams_.begin(), streams_.end(),
                     [](const MessageStream& c) { return c.HasOutput(); });
}

bool Cycle::LooksBusy() const {
  return !queue_->Empty() ||
         std::any_of(streams_.begin(), streams_.end(),
                     [](const MessageStream& c) { return c.Readable(); });
}

void Cycle::Send(int neighbour, std::string_view message) {
  for (MessageStream& stream : streams_) {
    if (stream.peer() == neighbour) return stream.Send(message);
  }
}

void Cycle::Complete(Completion done, Status status, int32_t value) {
  outcomes_.push_back({std::move(done), std::move(status), value});
}

void Cycle::Ended(const Key& key, Completion done, const Status& status,
                  int32_t value) {
  controller_.Finished(key);
  Complete(std::move(done), status, value);
}

void Cycle::SetAdded(int32_t set, const SetMembers& members) {
  on_set_(set, members);
}

void Cycle::SetRemoved(int32_t set) { on_set_(set, nullptr); }

bool Cycle::AskPlace() {
  return main_thread_ != nullptr && main_thread_->Ask();
}

std::string Cycle::Place() const {
  return main_thread_ == nullptr ? "" : main_thread_->Place();
}

void Cycle::Warn(const std::string& text) {
  if (log_level_ <= LogLevel::kWarning) {
    WriteLog(LogLevel::kWarning,
             world_->topology().RankText(world_->topology().rank), text);
  }
}

void Cycle::Abort(AbortRecord::Class error_class, int32_t rank,
                  const std::string& text) {
  AbortRecord record;
  record.error_class = error_class;
  record.rank = rank;
  record.text = text;
  world_->RaiseAbort(record);
}

}  // namespace tf_hvd
