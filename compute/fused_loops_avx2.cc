#include "compute/fused_loops.h"
#include "compute/fused_loops_variant.h"

namespace tf_hvd {

const FusedLoops& Avx2LoopsOf(DType dtype) {
  return kLoops[static_cast<size_t>(dtype)];
}

void Avx2Stream(void* to, const void* from, size_t bytes) {
  Stream(to, from, bytes);
}

}  // namespace tf_hvd
