// Exposure: when nothing hides what a step's collectives take, since the rank
// has nothing to compute before they have ended.
//
// That is so from a step's last call on, and while an eager call lasts, whose
// thread waits for it; and from the last call before an eager one, for the
// function that made it has returned. In between, a graph may compute or wait,
// as before a synchronised batch norm's next layer. What it does is told by the
// steps before: if the next call follows the end of one that was under way at a
// steadier distance than it follows the last call, it has waited for that end.
// By least squares: more than half of a delay has been handed on.
#ifndef TF_HVD_RUNTIME_EVENTS_EXPOSURE_H_
#define TF_HVD_RUNTIME_EVENTS_EXPOSURE_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/events/recorder.h"

namespace tf_hvd {

// Nanoseconds: from, until.
using Interval = std::pair<int64_t, int64_t>;

// One thread.
class Exposure {
 public:
  // The parts of a step that are exposed, in order, each apart from the next.
  // `calls`: the step's, which have ended, sorted by when they were submitted;
  // `next_ns`: when the next step began. Steps come in order.
  std::vector<Interval> Next(const std::vector<RecordedCall>& calls,
                             int64_t next_ns);

 private:
  // A value's mean and mean distance from it, of late.
  class Spread {
   public:
    void Add(double value);
    double distance() const { return distance_; }
    int count() const { return count_; }

   private:
    double mean_ = 0;
    double distance_ = 0;
    int count_ = 0;
  };

  // A call that has followed another one.
  struct Follower {
    Spread call;  // from that one's submission
    Spread end;   // from the end of one that was under way then
  };

  // Whether the next call has waited for one that ended at `ended_ns`.
  bool Waits(const RecordedCall& call, int64_t ended_ns,
             const RecordedCall& next);

  std::map<std::string, std::map<std::string, Follower>> followers_;
  std::string last_;  // the last call of the step before
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_EVENTS_EXPOSURE_H_
