// Decides what a thread does while nothing arrives: how long a rank's
// background thread may sleep (agreement.md, section 7), and what a waiting
// caller does between two polls.
#ifndef TF_HVD_RUNTIME_EXECUTION_IDLING_H_
#define TF_HVD_RUNTIME_EXECUTION_IDLING_H_

#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/clock.h"
#include "runtime/contract/world.h"

namespace tf_hvd {

struct WaitState {
  int64_t idle_ns = 0;        // since there was last anything to do
  int64_t spin_ns = 0;        // how long this rank's own wait spins
  bool has_outcomes = false;  // completions are waiting to be fired
  bool has_output = false;    // an edge had no room; nothing rings when it has
  bool aborting = false;      // a smaller abort record may still arrive
  bool waiting = false;       // a request of this rank is not ordered yet
  bool relays = false;  // other ranks' requests wait for messages to this rank
  bool leaving = false;
  // Operations are in progress: their messages wake no thread.
  bool moving = false;
  bool rings = false;   // but the doorbell rings when one of them ends
  bool polled = false;  // arrivals on some edge wake no thread
  // Time until the next poll is needed even if nothing arrives.
  int64_t due_in_ns = std::numeric_limits<int64_t>::max();
};

// True if the awaited arrivals ring no doorbell.
inline bool MustLook(const WaitState& state) {
  return state.polled || (state.moving && !state.rings);
}

// True if some request, here or elsewhere, waits for messages to this rank.
inline bool IsNeeded(const WaitState& state) {
  return state.waiting || state.relays || state.leaving || state.moving;
}

// Ignores due_in_ns.
inline int64_t WaitForArrivalsNs(const WaitState& state) {
  if (state.has_outcomes) return 0;
  if (state.waiting && state.idle_ns < state.spin_ns) return 0;
  // Between processes on a node data takes less than this. Devices are not
  // polled all the time, because polling may delay the thread that launches
  // kernels.
  if (state.moving && !state.rings && state.idle_ns < kMs) return 0;
  if (state.has_output || state.aborting) return kMs;
  if (MustLook(state)) {
    if (!IsNeeded(state)) return 20 * kMs;
    // An arrival is found within a sixteenth of the time waited so far.
    return std::clamp(state.idle_ns / 16, 50 * kUs, kMs);
  }
  if (state.moving) return kMs;  // a failure rings no doorbell
  return state.waiting || state.leaving ? 100 * kMs : kSecond;
}

// 0: poll again immediately.
inline int64_t WaitLimitNs(const WaitState& state) {
  return std::min(WaitForArrivalsNs(state),
                  std::max<int64_t>(state.due_in_ns, 0));
}

// A yielded core may go to any thread, of another program as well, and comes
// back after a time slice of some milliseconds. So the core is yielded only if
// another rank may be waiting for it.
inline void PassTime(World* world) {
  constexpr int kPauses = 20;  // together about as long as one poll
  if (world->SharesCore()) {
    sched_yield();
    return;
  }
  for (int i = 0; i < kPauses; ++i) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
}

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_EXECUTION_IDLING_H_
