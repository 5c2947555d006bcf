// JobEnd: the state of this rank's way out of the job.
//
//   running -> leaving (asked to) -> closed (the end came down the tree)
//   running -> closed (another rank left)
//   any of them -> aborting (a record was seen) -> aborted (no smaller one
//   came)
//
// Requests ordered before the end are still executed after it, so a closed rank
// may still have work. Pure: the caller passes the time and its observations;
// times are of the clock of base/clock.h.
//
// Called only by the holder of the progress lock.
#ifndef TF_HVD_RUNTIME_EXECUTION_JOB_END_H_
#define TF_HVD_RUNTIME_EXECUTION_JOB_END_H_

#include <cstdint>

namespace tf_hvd {

class JobEnd {
 public:
  // This rank leaves. Only the first call has an effect.
  void Leave(int64_t now_ns);
  bool leaving() const { return leave_deadline_ns_ != 0; }

  // The end has arrived from the tree's top: no request is ordered after it.
  // Only the first call has an effect.
  void Close(int64_t now_ns);
  bool closed() const { return closed_since_ns_ != 0; }

  // True if this rank left and its wait has timed out: for the end, or, after
  // the end, for work that makes no more progress. `moved` increases with
  // progress. Then false again for a while.
  bool LeaveTimedOut(int64_t now_ns, bool has_work, uint64_t moved);

  // An abort record has been seen; a smaller one may still arrive. True once
  // that time is over, and the job is aborted with the smallest.
  bool AbortHolds(int64_t now_ns);
  bool aborting() const { return abort_deadline_ns_ != 0; }

  // True while the remaining output is still offered to the neighbours:
  // neighbours that have left accept nothing any more.
  bool OffersOutput(int64_t now_ns) const;

 private:
  int64_t leave_deadline_ns_ = 0;  // 0: not leaving
  uint64_t moved_ = 0;             // at the last call
  int64_t closed_since_ns_ = 0;    // 0: not closed
  int64_t abort_deadline_ns_ = 0;  // 0: no record seen
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_EXECUTION_JOB_END_H_
