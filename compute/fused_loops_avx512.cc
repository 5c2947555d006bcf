#include "compute/fused_loops.h"
#include "compute/fused_loops_variant.h"

namespace tf_hvd {

const FusedLoops& Avx512LoopsOf(DType dtype) {
  return kLoops[static_cast<size_t>(dtype)];
}

void Avx512Stream(void* to, const void* from, size_t bytes) {
  Stream(to, from, bytes);
}

}  // namespace tf_hvd
