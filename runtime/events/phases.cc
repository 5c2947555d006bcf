#include "runtime/events/phases.h"

namespace tf_hvd {
namespace {

// Spans of one kind that are closer than this are merged, and shorter waits are
// ignored.
constexpr int64_t kGapNs = 10'000;

}  // namespace

bool PhaseLog::Start() {
  if (taking_.exchange(true)) return false;
  if (ring_ == nullptr) ring_ = std::make_unique<PhaseSpan[]>(kSpans);
  // Spans added since the last Take belonged to the previous user.
  taken_.store(written_.load(std::memory_order_acquire),
               std::memory_order_release);
  dropped_.store(0, std::memory_order_relaxed);
  on_.store(true, std::memory_order_release);
  return true;
}

void PhaseLog::Stop() {
  on_.store(false, std::memory_order_release);
  taking_.store(false);
}

void PhaseLog::Add(const PhaseSpan& span) {
  if (!on()) return;
  const uint64_t written = written_.load(std::memory_order_relaxed);
  if (written - taken_.load(std::memory_order_acquire) == kSpans) {
    dropped_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  ring_[written % kSpans] = span;
  written_.store(written + 1, std::memory_order_release);
}

void PhaseLog::Take(std::vector<PhaseSpan>* spans) {
  const uint64_t written = written_.load(std::memory_order_acquire);
  uint64_t taken = taken_.load(std::memory_order_relaxed);
  for (; taken != written; ++taken) spans->push_back(ring_[taken % kSpans]);
  taken_.store(taken, std::memory_order_release);
}

void PhaseTimer::Enter(int64_t now_ns) { since_ns_ = now_ns; }

void PhaseTimer::Did(Phase phase, int64_t now_ns) {
  if (wait_.awaited >= 0) {
    wait_.end_ns = since_ns_;
    Put(wait_);
    wait_.awaited = -1;
  }
  Put({operation_, since_ns_, now_ns, phase, -1});
  since_ns_ = now_ns;
}

void PhaseTimer::Exit(int awaited, int64_t now_ns) {
  if (awaited == wait_.awaited) return;
  if (wait_.awaited >= 0) {
    wait_.end_ns = now_ns;
    Put(wait_);
  }
  wait_ = {operation_, now_ns, 0, Phase::kWait, awaited};
}

void PhaseTimer::Put(const PhaseSpan& span) {
  if (span.phase == Phase::kWait && span.end_ns - span.begin_ns < kGapNs) {
    return;
  }
  if (last_.end_ns != 0 && last_.phase == span.phase &&
      last_.awaited == span.awaited && span.begin_ns - last_.end_ns < kGapNs) {
    last_.end_ns = span.end_ns;
    return;
  }
  if (last_.end_ns != 0) log_->Add(last_);
  last_ = span;
}

void PhaseTimer::Flush() {
  if (wait_.awaited >= 0) {
    wait_.end_ns = since_ns_;
    Put(wait_);
    wait_.awaited = -1;
  }
  if (last_.end_ns != 0) log_->Add(last_);
  last_.end_ns = 0;
}

}  // namespace tf_hvd
