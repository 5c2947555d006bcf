// Doorbell: wakes a sleeping rank. Each rank has one, in memory that all ranks
// of the node can reach (agreement.md, section 7).
//
// Every member may be called on any thread of any process that has the memory
// mapped; all accesses are sequentially consistent.
#ifndef TF_HVD_RUNTIME_CONTRACT_DOORBELL_H_
#define TF_HVD_RUNTIME_CONTRACT_DOORBELL_H_

#include <atomic>
#include <cstdint>

namespace tf_hvd {

class Doorbell {
 public:
  // Owner: announces that no thread polls from now on (true), or that one does
  // (false).
  void SetAsleep(bool asleep);

  // Any rank: wakes the owner's background thread if no thread of the owner
  // polls.
  void RingIfAsleep();

  // Wakes the background thread regardless of `asleep`.
  void Ring();

  // Owner's background thread: sleeps until rung (true) or until `limit_ns` has
  // passed (false); returns immediately if rung since the last Wait.
  bool Wait(int64_t limit_ns);

 private:
  std::atomic<uint32_t> bell_{0};  // 1: rung and not yet seen; a futex word
  std::atomic<uint32_t> asleep_{0};
};

static_assert(std::atomic<uint32_t>::is_always_lock_free,
              "a futex word must be a plain 32-bit word");

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_CONTRACT_DOORBELL_H_
