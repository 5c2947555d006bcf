#include "compute/streaming.h"

#include "base/counters.h"
#include "compute/fused_loops.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tf_hvd {

bool HasStreamingStores() {
#if defined(__x86_64__)
  return true;
#else
  return false;
#endif
}

void StreamBytes(void* to, const void* from, size_t bytes) {
  BestFusedVariant().stream(to, from, bytes);
}

void FenceStreams() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
  Count(Counted::kFences);
}

}  // namespace tf_hvd
