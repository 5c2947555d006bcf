#include "runtime/execution/job_end.h"

#include <utility>

#include "base/clock.h"

namespace tf_hvd {
namespace {

// A smaller abort record may still arrive within this time.
constexpr int64_t kAbortSettleNs = 500 * kMs;
// How long a leaving rank waits for the end to come down the tree.
constexpr int64_t kLeaveNs = 5 * kSecond;
// How long batches for the children are offered after the end.
constexpr int64_t kFarewellNs = kSecond;

}  // namespace

void JobEnd::Leave(int64_t now_ns) {
  if (!leaving()) leave_deadline_ns_ = now_ns + kLeaveNs;
}

void JobEnd::Close(int64_t now_ns) {
  if (!closed()) closed_since_ns_ = now_ns;
}

bool JobEnd::LeaveTimedOut(int64_t now_ns, bool has_work, uint64_t moved) {
  if (!leaving() || (closed() && !has_work)) return false;
  // Requests ordered before the end may take any time while data moves.
  if (closed() && std::exchange(moved_, moved) != moved) {
    leave_deadline_ns_ = now_ns + kLeaveNs;
  }
  if (now_ns <= leave_deadline_ns_) return false;
  leave_deadline_ns_ = now_ns + kLeaveNs;
  return true;
}

bool JobEnd::AbortHolds(int64_t now_ns) {
  if (!aborting()) abort_deadline_ns_ = now_ns + kAbortSettleNs;
  return now_ns >= abort_deadline_ns_;
}

bool JobEnd::OffersOutput(int64_t now_ns) const {
  return now_ns <= closed_since_ns_ + kFarewellNs;
}

}  // namespace tf_hvd
