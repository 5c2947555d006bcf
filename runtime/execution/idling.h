// What a thread does while nothing comes: how long a rank's background thread
// may sleep (agreement.md, section 7), and what a caller that waits by itself
// does between two looks.
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
  int64_t idle_ns = 0;        // since anything was to be done
  int64_t spin_ns = 0;        // for how long an own wait spins
  bool has_outcomes = false;  // callers are to be told
  bool has_output = false;    // an edge had no room: nobody rings when it has
  bool aborting = false;      // a smaller abort record may still arrive
  bool waiting = false;       // an own request is not in order yet
  bool relays = false;        // others' requests wait for what comes to it
  bool leaving = false;
  bool moving = false;  // operations are under way: messages wake nobody
  bool rings = false;   // but the doorbell rings when one of them ends
  bool polled = false;  // arrivals on some edge wake nobody
  // Until a look is needed although nothing comes.
  int64_t due_in_ns = std::numeric_limits<int64_t>::max();
};

// True if nothing rings when what is waited for comes.
inline bool MustLook(const WaitState& state) {
  return state.polled || (state.moving && !state.rings);
}

// True if somebody waits, here or elsewhere, for what comes to this rank.
inline bool IsNeeded(const WaitState& state) {
  return state.waiting || state.relays || state.leaving || state.moving;
}

// Without regard to due_in_ns.
inline int64_t WaitForArrivalsNs(const WaitState& state) {
  if (state.has_outcomes) return 0;
  if (state.waiting && state.idle_ns < state.spin_ns) return 0;
  // Between processes of a node data takes less than this. Devices are not
  // asked all the time: who asks may hold up who launches.
  if (state.moving && !state.rings && state.idle_ns < kMs) return 0;
  if (state.has_output || state.aborting) return kMs;
  if (MustLook(state)) {
    if (!IsNeeded(state)) return 20 * kMs;
    // An arrival is found within a sixteenth of the time that was waited.
    return std::clamp(state.idle_ns / 16, 50 * kUs, kMs);
  }
  if (state.moving) return kMs;  // what fails rings for nobody
  return state.waiting || state.leaving ? 100 * kMs : kSecond;
}

// 0: look again at once.
inline int64_t WaitLimitNs(const WaitState& state) {
  return std::min(WaitForArrivalsNs(state),
                  std::max<int64_t>(state.due_in_ns, 0));
}

// A core that is yielded goes to whoever wants it, another program as well, and
// comes back after a time slice of some milliseconds: it is yielded where
// another rank may wait for it.
inline void PassTime(World* world) {
  constexpr int kPauses = 20;  // together about as long as a look
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
