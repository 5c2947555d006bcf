// JobEnd: how far this rank is on its way out of the job.
//
//   running -> leaving (asked to) -> closed (the end came down the tree)
//   running -> closed (another rank left)
//   any of them -> aborting (a record was seen) -> aborted (no smaller one
//   came)
//
// What is in order before the end is carried out after it as well, so that a
// closed rank may still have work. Pure: the caller says what time it is and
// what it sees; times are of the clock of base/clock.h.
//
// Holder of the progress lock only.
#ifndef TF_HVD_RUNTIME_EXECUTION_JOB_END_H_
#define TF_HVD_RUNTIME_EXECUTION_JOB_END_H_

#include <cstdint>

namespace tf_hvd {

class JobEnd {
 public:
  // This rank leaves. The first call counts.
  void Leave(int64_t now_ns);
  bool leaving() const { return leave_deadline_ns_ != 0; }

  // The end has come down the tree: nothing new is put in order after it. The
  // first call counts.
  void Close(int64_t now_ns);
  bool closed() const { return closed_since_ns_ != 0; }

  // True if this rank left and waits in vain: for the end, or, after it, for
  // work that no longer moves. `moved` counts what has moved. Then not again
  // for a while.
  bool LeavesInVain(int64_t now_ns, bool has_work, uint64_t moved);

  // An abort record has been seen; a smaller one may still come. True once that
  // is over, and the job aborted for the smallest.
  bool AbortHolds(int64_t now_ns);
  bool aborting() const { return abort_deadline_ns_ != 0; }

  // True while what is left for the neighbours is still offered to them: those
  // that have gone take nothing any more.
  bool OffersOutput(int64_t now_ns) const;

 private:
  int64_t leave_deadline_ns_ = 0;  // 0: not leaving
  uint64_t moved_ = 0;             // at the last look
  int64_t closed_since_ns_ = 0;    // 0: not closed
  int64_t abort_deadline_ns_ = 0;  // 0: no record seen
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_EXECUTION_JOB_END_H_
