#include "runtime/execution/progress_engine.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "runtime/execution/idling.h"

namespace tf_hvd {
namespace {

// A caller that does not wait makes progress only on requests up to this size:
// it must not block a thread of TensorFlow.
constexpr int64_t kInPlaceBytes = 64 * 1024;
// A waiting caller stays this many times as long as another one. Handing over
// to the background thread and getting the result back takes two thread
// switches. If other processes compete for the cores, each switch costs a time
// slice. The default outlasts one such slice of another rank.
constexpr int64_t kPatience = 100;
// How long the background thread leaves arrivals to callers that follow one
// another. It is the maximum delay of a message for a rank without further
// callers.
constexpr int64_t kDozeNs = 1 * kMs;
// Interval of the polls without a background thread.
constexpr std::chrono::milliseconds kPause{1};

// The engine that this thread fires completions for.
thread_local const void* firing_engine = nullptr;

}  // namespace

ProgressEngine::ProgressEngine(const Config& config, World* world, Cycle* cycle,
                               TensorQueue* queue)
    : spin_ns_(config.spin_ns),
      world_(world),
      cycle_(cycle),
      queue_(queue),
      completions_([this](std::vector<Outcome> outcomes) {
        FireAll(std::move(outcomes));
        if (!queue_->Empty()) WakeBackground();
      }) {
  // Operations on a GPU's stream end without help; the caller must not wait for
  // them.
  if (world->topology().size > 1 || world->gpus() != nullptr) {
    has_background_ = true;
    thread_ = std::thread([this] { Background(); });
    pthread_setname_np(thread_.native_handle(), kThreadName);
  }
}

ProgressEngine::~ProgressEngine() {
  if (thread_.joinable()) thread_.join();
}

void ProgressEngine::Submit(Entry entry) {
  const int64_t bytes =
      ExpectedBytes(entry, static_cast<size_t>(world_->topology().size));
  const bool waits = entry.caller_waits;
  const bool quiet = open_.fetch_add(1) == 0;
  queue_->Push(std::move(entry));
  // Inside a completion: driving from here would nest without bound, and the
  // thread that fires the completion polls again afterwards.
  if (firing_engine == this) return;
  if (!has_background_) return DriveAlone();
  if (quiet && (waits || bytes <= kInPlaceBytes)) return CallerTurn(waits);
  // If another thread holds the progress lock, it polls again after releasing
  // it.
  WakeBackground();
}

void ProgressEngine::WakeBackground() {
  Doorbell* const bell = world_->doorbell();
  if (dozing_) return bell->Ring();
  bell->RingIfAsleep();
}

void ProgressEngine::CallerTurn(bool waits) {
  if (!progress_.TryTake()) return WakeBackground();
  ++caller_turns_;
  Doorbell* const bell = world_->doorbell();
  bell->SetAsleep(false);
  DriveForCaller(waits);
  std::vector<Outcome> outcomes = TakeOutcomes();
  // Nothing rings when an edge has room again.
  const bool unsent = cycle_->HasOutput();
  progress_.Release();
  const bool dozing = dozing_;
  if (!dozing) bell->SetAsleep(true);
  if (open_ > 0 || unsent || cycle_->HasWork() ||
      (!dozing && cycle_->LooksBusy())) {
    bell->Ring();
  }
  FireAll(std::move(outcomes));
  if (queue_->Empty()) return;
  if (!has_background_) return DriveAlone();
  bell->Ring();
}

// Makes progress until a request has ended, or until the caller's time limit.
void ProgressEngine::DriveForCaller(bool waits) {
  const int64_t patience_ns = spin_ns_ * (waits ? kPatience : 1);
  int64_t deadline_ns = NowNs() + patience_ns;
  do {
    if (!cycle_->Advance()) {
      PassTime(world_);
    } else if (waits) {
      deadline_ns = NowNs() + patience_ns;
    }
  } while (open_ > 0 && !cycle_->HasOutcomes() && NowNs() < deadline_ns &&
           !cycle_->aborted());
}

// Without a background thread: with one rank, or after the end.
void ProgressEngine::DriveAlone() {
  do {
    if (!progress_.TryTake()) return;  // the holder polls again
    while (cycle_->Advance()) {
    }
    std::vector<Outcome> outcomes = TakeOutcomes();
    progress_.Release();
    FireAll(std::move(outcomes));
    if (cycle_->HasWork()) std::this_thread::sleep_for(kPause);
  } while (cycle_->LooksBusy() || cycle_->HasWork());
}

void ProgressEngine::Background() {
  Doorbell* const bell = world_->doorbell();
  for (;;) {
    const bool held = progress_.TryTake();
    if (held) {
      const bool ended = BackgroundTurn();
      const int64_t limit_ns = WaitLimitNs(StateOfWait());
      std::vector<Outcome> outcomes = TakeOutcomes();
      progress_.Release();
      const bool fired = !outcomes.empty();
      FireMeanwhile(std::move(outcomes));
      if (ended) break;
      if (limit_ns == 0 && !fired) sched_yield();
      if (fired || limit_ns == 0) continue;
      if (Doze()) continue;
      bell->SetAsleep(true);
      if (!cycle_->LooksBusy()) bell->Wait(limit_ns);
    } else {
      // A caller holds the lock for a moment, and does not know why this thread
      // was woken (Leave, an abort).
      bell->SetAsleep(true);
      bell->Wait(kMs);
    }
    bell->SetAsleep(false);
  }
  has_background_ = false;
  completions_.Stop();
  DriveAlone();  // requests submitted meanwhile
}

// While callers follow one another, each polls for arrivals. If a faster rank's
// message for the next call woke this thread each time, the thread switch would
// cost more than the call itself. False if no caller was active for a while:
// this thread handles arrivals again. True if there may be something to do.
bool ProgressEngine::Doze() {
  const auto came = [this] {
    const uint64_t turns = caller_turns_;
    return std::exchange(seen_turns_, turns) != turns;
  };
  if (!came()) return false;
  Doorbell* const bell = world_->doorbell();
  dozing_ = true;
  bell->SetAsleep(false);
  // Requests submitted before dozing_ was set have rung no doorbell.
  bool rung = open_ > 0;
  if (!rung) {
    do {
      rung = bell->Wait(kDozeNs);
    } while (!rung && came());
  }
  dozing_ = false;
  return rung;
}

// True when the runtime has ended.
bool ProgressEngine::BackgroundTurn() {
  bool busy = false;
  do {
    busy = cycle_->Advance();
    if (busy) last_progress_ns_ = NowNs();
  } while (busy && !cycle_->HasOutcomes());
  return cycle_->AtEnd();
}

WaitState ProgressEngine::StateOfWait() const {
  const int64_t now_ns = NowNs();
  WaitState state = cycle_->StateOfWait(now_ns);
  state.idle_ns = now_ns - last_progress_ns_;
  state.spin_ns = spin_ns_;
  return state;
}

void ProgressEngine::Leave(const std::string& reason, bool through) {
  cycle_->AskToLeave(reason, through);
  if (!thread_.joinable()) return DriveAlone();
  world_->doorbell()->Ring();
  thread_.join();
}

std::vector<Outcome> ProgressEngine::TakeOutcomes() {
  std::vector<Outcome> outcomes = cycle_->TakeOutcomes();
  open_ -= static_cast<int64_t>(outcomes.size());
  return outcomes;
}

// On a separate thread while data moves.
void ProgressEngine::FireMeanwhile(std::vector<Outcome> outcomes) {
  if (outcomes.empty() || !cycle_->HasWork()) {
    return FireAll(std::move(outcomes));
  }
  completions_.Add(std::move(outcomes));
}

void ProgressEngine::FireAll(std::vector<Outcome> outcomes) {
  const void* const outer = std::exchange(firing_engine, this);
  for (Outcome& outcome : outcomes) outcome.Fire();
  firing_engine = outer;
}

}  // namespace tf_hvd
