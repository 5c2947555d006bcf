#include "tests/runtime/protocol/runner.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace tf_hvd::protocol_test {

Runner::Runner(SimWorld* world, int rank, std::vector<Phase> phases)
    : world_(world),
      rank_(rank),
      phases_(std::move(phases)),
      lanes_left_(phases_.size()) {
  set_numbers_[0] = kWorldSet;
}

void Runner::RunPhase(size_t index) {
  if (index == phases_.size() || halted_ || world_->rank(rank_)->ended()) {
    return;
  }
  const Phase& phase = phases_[index];
  lanes_left_[index] = phase.lanes.size();
  int64_t last_ns = 0;
  for (const Lane& lane : phase.lanes) {
    last_ns = std::max(last_ns, RunLane(index, lane));
  }
  if (phase.hurries || phase.lanes.empty()) {
    world_->events()->After(last_ns, [this, index] { RunPhase(index + 1); });
  }
}

// Returns the time after which all calls have been made, unless they block.
int64_t Runner::RunLane(size_t phase, const Lane& lane) {
  if (lane.calls.empty()) {
    LaneEnded(phase);
    return 0;
  }
  if (lane.blocking) {
    CallNext(phase, lane, 0);
    return 0;
  }
  const auto left = std::make_shared<size_t>(lane.calls.size());
  const auto done = [this, phase, left](const Submission&) {
    if (--*left == 0) LaneEnded(phase);
  };
  int64_t time_ns = 0;
  for (size_t i = 0; i < lane.calls.size(); ++i) {
    const Call& call = lane.calls[i];
    if (call.at_once) continue;
    time_ns += world_->random()->Pick<int64_t>({0, 0, kUs, kMs});
    world_->events()->After(time_ns, [this, &lane, i, done] {
      Make(lane.calls[i], done);
      for (size_t k = i + 1; k < lane.calls.size() && lane.calls[k].at_once;
           ++k) {
        Make(lane.calls[k], done);
      }
    });
  }
  return time_ns;
}

void Runner::CallNext(size_t phase, const Lane& lane, size_t next) {
  if (next == lane.calls.size()) return LaneEnded(phase);
  Make(lane.calls[next], [this, phase, &lane, next](const Submission&) {
    CallNext(phase, lane, next + 1);
  });
}

void Runner::LaneEnded(size_t phase) {
  if (--lanes_left_[phase] == 0 && !phases_[phase].hurries) {
    RunPhase(phase + 1);
  }
}

void Runner::Make(const Call& call, SimWorld::Done done) {
  if (halted_) return;
  Submission submission;
  submission.name = call.name;
  submission.local_error = call.local_error;
  submission.step = call.step;
  submission.late = call.late;
  const auto set = set_numbers_.find(call.set);
  const auto removed = set_numbers_.find(std::max(call.removes, 0));
  if (set == set_numbers_.end() || removed == set_numbers_.end()) {
    return done(submission);  // it could not be added
  }
  submission.set = set->second;
  Request request = call.request;
  if (call.removes >= 0) request.removed_set = removed->second;
  const int adds = call.adds;
  world_->Submit(rank_, std::move(submission), request,
                 [this, adds, done = std::move(done)](const Submission& ended) {
                   if (adds >= 0 && ended.status.ok()) {
                     set_numbers_[adds] = ended.value;
                   }
                   done(ended);
                 });
}

}  // namespace tf_hvd::protocol_test
