// Loops that reduce several inputs in one pass over memory, for the processor
// at hand: the same source, compiled for several instruction sets, with the
// same bits from each. What they do not serve goes through the loops of
// buffer_ops_cpu.cc, one after the other.
//
// Pure functions on the given memory; any thread, in the standard float
// environment (float_environment.h).
#ifndef TF_HVD_KERNELS_FUSED_LOOPS_H_
#define TF_HVD_KERNELS_FUSED_LOOPS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/types.h"

namespace tf_hvd {

// output[i] = (inputs[0][i] (op) inputs[1][i] (op) ...) * scale; `copy`, if not
// null, gets the same. Both may equal inputs.
using FusedLoop = void (*)(const void* const* inputs, size_t ranks,
                           int64_t count, double scale, void* output,
                           void* copy);

// [0]: without, [1]: with a scale; null: not served.
struct FusedLoops {
  FusedLoop sum[2];
  FusedLoop min[2];
  FusedLoop max[2];
  FusedLoop product[2];
};

// One set of loops: what it needs of the processor, and whether that has it.
struct FusedVariant {
  const char* name;
  bool (*supported)();
  const FusedLoops& (*of)(DType dtype);
};

// From the best to the baseline, which every processor has.
const std::vector<FusedVariant>& FusedVariants();

// Of the best variant that the processor has.
FusedLoop FusedLoopOf(DType dtype, ReduceOp op, bool scaled);

// Of that variant.
FusedLoop FusedLoopOf(const FusedVariant& variant, DType dtype, ReduceOp op,
                      bool scaled);

const FusedLoops& BaselineLoopsOf(DType dtype);
const FusedLoops& Avx2LoopsOf(DType dtype);
const FusedLoops& Avx512LoopsOf(DType dtype);

}  // namespace tf_hvd

#endif  // TF_HVD_KERNELS_FUSED_LOOPS_H_
