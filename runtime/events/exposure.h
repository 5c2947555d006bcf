// Exposure: the time in a step when no computation hides the collectives,
// because the rank can compute nothing before they have ended.
//
// Collectives are exposed in three cases. After a step's last call. During an
// eager call, because its thread waits for it. And from the last call before an
// eager one, because the function that made it has returned. In between, a
// graph may compute or wait, as it does before the next layer of a synchronised
// batch norm. Earlier steps show which: if the next call follows the end of an
// earlier call at a steadier interval than it follows the last call, it waits
// for that end. Decided by least squares: more than half of a delay has been
// passed on.
#ifndef TF_HVD_RUNTIME_EVENTS_EXPOSURE_H_
#define TF_HVD_RUNTIME_EVENTS_EXPOSURE_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/events/recorder.h"

namespace tf_hvd {

// Nanoseconds: start, end.
using Interval = std::pair<int64_t, int64_t>;

// One thread.
class Exposure {
 public:
  // The exposed parts of a step, in order, disjoint. `calls`: the step's calls,
  // which have ended, sorted by submission time; `next_ns`: start of the next
  // step. Steps must be passed in order.
  std::vector<Interval> Next(const std::vector<RecordedCall>& calls,
                             int64_t next_ns);

 private:
  // A value's recent mean, and its mean distance from that.
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

  // A call that has followed another call.
  struct Follower {
    Spread call;  // interval since the other call's submission
    Spread end;   // interval since the end of a call then in progress
  };

  // Whether `next` has waited for the call that ended at `ended_ns`.
  bool Waits(const RecordedCall& call, int64_t ended_ns,
             const RecordedCall& next);

  std::map<std::string, std::map<std::string, Follower>> followers_;
  std::string last_;  // the last call of the previous step
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_EVENTS_EXPOSURE_H_
