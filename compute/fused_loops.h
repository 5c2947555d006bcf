// Loops that reduce several inputs in one pass over memory, for the processor
// in use. The same source is compiled for several instruction sets and gives
// the same bits with each. Unsupported cases use the loops of
// buffer_ops_cpu.cc, one after the other.
//
// Pure functions on the given memory; any thread, in the standard float
// environment (float_environment.h).
#ifndef TF_HVD_COMPUTE_FUSED_LOOPS_H_
#define TF_HVD_COMPUTE_FUSED_LOOPS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/types.h"

namespace tf_hvd {

// As in ReduceOptions (buffer_ops.h).
struct FusedScales {
  double before = 1.0;
  double after = 1.0;
  double divisor = 1.0;
};

// Scaling that a loop does in addition to the reduction: none; a product, or a
// product and a quotient, at the end; all.
enum Scaled { kUnscaled, kProduct, kQuotient, kThroughout, kScaledWays };

inline Scaled ScaledBy(const FusedScales& scales) {
  if (scales.before != 1.0) return kThroughout;
  if (scales.divisor != 1.0) return kQuotient;
  return scales.after != 1.0 ? kProduct : kUnscaled;
}

// output[i] = (before * inputs[0][i] (op) before * inputs[1][i] (op) ...) *
// after / divisor; `copy`, if not null, gets the same. Both may equal inputs.
using FusedLoop = void (*)(const void* const* inputs, size_t ranks,
                           int64_t count, const FusedScales& scales,
                           void* output, void* copy);

// See StreamBytes.
using StreamLoop = void (*)(void* to, const void* from, size_t bytes);

// Null: not supported.
struct LoopsOfOp {
  FusedLoop of[kScaledWays];
};

// For one element type, in the order of ReduceOp.
struct FusedLoops {
  LoopsOfOp of[kReduceOpCount];
};

// One set of loops: the processor features that it needs, and whether the
// processor has them.
struct FusedVariant {
  const char* name;
  bool (*supported)();
  const FusedLoops& (*of)(DType dtype);
  StreamLoop stream;
};

// From the best to the baseline, which every processor has.
const std::vector<FusedVariant>& FusedVariants();

// The best variant that the processor has.
const FusedVariant& BestFusedVariant();

// Uses the best variant.
FusedLoop FusedLoopOf(DType dtype, ReduceOp op, Scaled scaled);

// Uses the given variant.
FusedLoop FusedLoopOf(const FusedVariant& variant, DType dtype, ReduceOp op,
                      Scaled scaled);

const FusedLoops& BaselineLoopsOf(DType dtype);
const FusedLoops& Avx2LoopsOf(DType dtype);
const FusedLoops& Avx512LoopsOf(DType dtype);

void BaselineStream(void* to, const void* from, size_t bytes);
void Avx2Stream(void* to, const void* from, size_t bytes);
void Avx512Stream(void* to, const void* from, size_t bytes);

}  // namespace tf_hvd

#endif  // TF_HVD_COMPUTE_FUSED_LOOPS_H_
