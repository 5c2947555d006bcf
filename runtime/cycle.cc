#include "runtime/cycle.h"

#include <algorithm>

#include "runtime/clock.h"

namespace tf_hvd {
namespace {

constexpr int64_t kMs = 1'000'000;
// A smaller abort record may still arrive within this time.
constexpr int64_t kAbortSettleNs = 500 * kMs;
// How long a rank that leaves waits for the end to come down the tree.
constexpr int64_t kLeaveNs = 5000 * kMs;
// How long batches for the children are offered after the end.
constexpr int64_t kFarewellNs = 1000 * kMs;
constexpr int64_t kTickNs = 100 * kMs;

StallOptions StallOptionsOf(const Config& config) {
  StallOptions options;
  options.warn_ns = config.stall_warn_ns;
  options.fail_ns = config.stall_fail_ns;
  // Short limits are for tests and impatient users: all of it gets shorter.
  options.query_ns = std::min(options.query_ns, options.warn_ns);
  if (options.fail_ns > 0) {
    options.grace_ns =
        std::clamp(options.fail_ns, 1000 * kMs, options.grace_ns);
  }
  return options;
}

}  // namespace

Cycle::Cycle(const Config& config, World* world, TensorQueue* queue,
             SetListener on_set)
    : world_(world),
      queue_(queue),
      on_set_(std::move(on_set)),
      controller_(world->topology(), StallOptionsOf(config), this),
      executor_(world->backends(), config.fusion_threshold, this) {
  // The word was checked when the configuration was read.
  static_cast<void>(ParseLogLevel(config.log_level, &log_level_));
  const Topology& topology = world->topology();
  const TreePlace place =
      PlaceOf(topology.rank, topology.nodes, topology.fan_out);
  std::vector<int> neighbours = place.children;
  if (place.parent >= 0) neighbours.push_back(place.parent);
  for (const int neighbour : neighbours) {
    streams_.emplace_back(neighbour, world->edge(neighbour));
    polled_ = polled_ || streams_.back().polled();
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
      controller_.Receive(stream.peer(), message, now_ns);
    });
  }
  busy |= controller_.EmitReady();
  if (now_ns >= std::min(next_tick_ns_, controller_.due_ns())) {
    next_tick_ns_ = now_ns + kTickNs;
    // The reason is found: what comes later must not take its place.
    if (!Aborting()) controller_.Tick(now_ns);
  }
  for (MessageStream& stream : streams_) busy |= stream.Push();
  if (closed_since_ns_ == 0 && !controller_.ended().ok()) {
    closed_since_ns_ = now_ns;
  }
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
  if (Leaving()) BoundLeave(now_ns);
  const auto record = world_->PollAbort();
  if (!record.has_value()) return;
  // After the end of an orderly shutdown the other ranks may go as they like.
  if (!controller_.ended().ok() && !executor_.HasWork()) return;
  if (abort_deadline_ns_ == 0) abort_deadline_ns_ = now_ns + kAbortSettleNs;
  if (now_ns < abort_deadline_ns_) return;
  abort_status_ = Aborted(record->text);
  controller_.Abort(abort_status_);
}

void Cycle::AskToLeave(const std::string& reason) {
  const std::lock_guard<std::mutex> lock(leave_mutex_);
  if (!leave_asked_) leave_reason_ = reason;
  leave_asked_ = true;
}

void Cycle::LeaveIfAsked(int64_t now_ns) {
  if (!leave_asked_ || Leaving()) return;
  leave_deadline_ns_ = now_ns + kLeaveNs;
  const std::lock_guard<std::mutex> lock(leave_mutex_);
  controller_.Leave(leave_reason_);
}

// Who leaves waits for the end to come down the tree, and then for what is
// before the end. The latter may take as long as it likes while data moves.
void Cycle::BoundLeave(int64_t now_ns) {
  const bool closed = !controller_.ended().ok();
  if (closed && !executor_.HasWork()) return;
  const uint64_t moved = Moved();
  if (closed && std::exchange(leave_moved_, moved) != moved) {
    leave_deadline_ns_ = now_ns + kLeaveNs;
  }
  if (now_ns <= leave_deadline_ns_) return;
  leave_deadline_ns_ = now_ns + kLeaveNs;
  // The top of the tree closes at once, so that here somebody is above.
  const int silent = closed ? Awaited() : controller_.state().place.parent;
  std::string text = world_->topology().RankText(world_->topology().rank);
  text += closed ? " left while an operation was going on that no longer moves"
                 : " left and the other ranks did not answer";
  if (silent >= 0) {
    text += std::string(closed ? ": no data from " : ": no answer from ") +
            world_->topology().RankText(silent) +
            " (stopped, or its machine cannot be reached)";
  }
  Abort(AbortRecord::kStalled, world_->topology().rank, text);
}

bool Cycle::AtEnd() const {
  if (aborted()) return !executor_.HasWork();
  if (controller_.ended().ok() || executor_.HasWork()) return false;
  // A neighbour that has gone takes nothing any more.
  return !HasOutput() || NowNs() > closed_since_ns_ + kFarewellNs;
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

void Cycle::Execute(std::vector<Task> batch) {
  executor_.Add(std::move(batch));
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
