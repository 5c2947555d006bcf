#include "compute/fused_loops.h"

namespace tf_hvd {
namespace {

#if defined(__x86_64__)
bool HasAvx512() {
  return __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("f16c");
}

bool HasAvx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
}
#endif

bool Always() { return true; }

}  // namespace

const std::vector<FusedVariant>& FusedVariants() {
  static const auto* const variants = new std::vector<FusedVariant>{
#if defined(__x86_64__)
      {"avx512", HasAvx512, Avx512LoopsOf, Avx512Stream},
      {"avx2", HasAvx2, Avx2LoopsOf, Avx2Stream},
#endif
      {"baseline", Always, BaselineLoopsOf, BaselineStream},
  };
  return *variants;
}

const FusedVariant& BestFusedVariant() {
  static const FusedVariant* const best = [] {
    const FusedVariant* found = FusedVariants().data();
    while (!found->supported()) ++found;
    return found;
  }();
  return *best;
}

FusedLoop FusedLoopOf(DType dtype, ReduceOp op, Scaled scaled) {
  return FusedLoopOf(BestFusedVariant(), dtype, op, scaled);
}

FusedLoop FusedLoopOf(const FusedVariant& variant, DType dtype, ReduceOp op,
                      Scaled scaled) {
  const auto index = static_cast<size_t>(op);
  if (index >= kReduceOpCount) return nullptr;
  return variant.of(dtype).of[index].of[scaled];
}

}  // namespace tf_hvd
