#include "runtime/events/call_reader.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace tf_hvd {
namespace {

// The maximum delay from a time in a call to its visibility.
constexpr int64_t kLateNs = kMs;
// Limit of the steps kept: they may never be taken, or a call may never end.
constexpr size_t kSteps = 1000;

}  // namespace

CallReader::CallReader(const Recorder* recorder)
    : recorder_(recorder), next_(recorder->calls() + 1) {}

std::vector<RecordedCall> CallReader::Look() {
  settled_ns_ = horizon_ns_;
  horizon_ns_ = NowNs() - kLateNs;
  NoteNew();
  std::vector<RecordedCall> ended;
  std::deque<Open> still;
  for (const Open& one : open_) {
    int64_t ended_ns = 0;
    uint64_t operation = 0;
    RecordedCall call{};
    auto found = recorder_->Look(one.number, &ended_ns, &operation);
    if (found == Recorder::Found::kThere && ended_ns == 0) {
      horizon_ns_ = std::min(horizon_ns_, one.submitted_ns);
      still.push_back(one);
      continue;
    }
    if (found == Recorder::Found::kThere) {
      found = recorder_->Read(one.number, &call);
    }
    const auto step = steps_.find(one.step);
    if (step != steps_.end()) --step->second.open;
    if (found != Recorder::Found::kThere) {
      ++dropped_;
      continue;
    }
    if (step != steps_.end()) step->second.calls.push_back(call);
    ended.push_back(call);
  }
  open_ = std::move(still);
  NoteOpen();
  while (steps_.size() > kSteps) steps_.erase(steps_.begin());
  return ended;
}

// Last, because all calls of an operation start before the first of them ends.
void CallReader::NoteOpen() {
  open_in_.clear();
  for (const Open& one : open_) {
    int64_t ended_ns = 0;
    uint64_t operation = 0;
    recorder_->Look(one.number, &ended_ns, &operation);
    if (operation != 0) open_in_.insert(operation);
  }
}

void CallReader::NoteNew() {
  const uint64_t made = recorder_->calls();
  RecordedCall call{};
  for (; next_ <= made; ++next_) {
    const Recorder::Found found = recorder_->Read(next_, &call);
    if (found == Recorder::Found::kComing) break;
    if (found == Recorder::Found::kGone) {
      ++dropped_;
      continue;
    }
    NoteStep(call);
    open_.push_back({next_, step_, call.submitted_ns});
  }
}

void CallReader::NoteStep(const RecordedCall& call) {
  const std::string name = call.name.Get();
  if (!called_.insert(name).second) {
    called_ = {name};
    ++step_;
  }
  Step& step = steps_[step_];
  if (step.first_submitted_ns == 0) step.first_submitted_ns = call.submitted_ns;
  ++step.open;
}

std::vector<CallReader::Step> CallReader::TakeSteps() {
  std::vector<Step> taken;
  while (!steps_.empty() && steps_.begin()->first < step_ &&
         steps_.begin()->second.open == 0) {
    Step& step = taken.emplace_back(std::move(steps_.begin()->second));
    steps_.erase(steps_.begin());
    step.next_ns = steps_.begin()->second.first_submitted_ns;
    std::sort(step.calls.begin(), step.calls.end(),
              [](const RecordedCall& one, const RecordedCall& other) {
                return one.submitted_ns < other.submitted_ns;
              });
    step.exposed = exposure_.Next(step.calls, step.next_ns);
  }
  return taken;
}

}  // namespace tf_hvd
