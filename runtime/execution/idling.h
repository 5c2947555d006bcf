// What a thread does between two looks that both find nothing.
#ifndef TF_HVD_RUNTIME_EXECUTION_IDLING_H_
#define TF_HVD_RUNTIME_EXECUTION_IDLING_H_

#include <sched.h>

#include "runtime/transport/world.h"

namespace tf_hvd {

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
