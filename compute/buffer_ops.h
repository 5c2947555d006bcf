// Reduction, scaling and conversion of elements in raw memory. Depends only on
// the table of types, neither on TensorFlow nor on the transports.
//
// Pure functions on the given memory; any thread, with the same bits on each,
// even if the thread flushes denormals. Buffers need only the alignment of
// their elements. Overlapping buffers must be equal.
#ifndef TF_HVD_COMPUTE_BUFFER_OPS_H_
#define TF_HVD_COMPUTE_BUFFER_OPS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/types.h"
#include "compute/streaming.h"

namespace tf_hvd {

// True if `op` is defined for `dtype`: Sum, Average, Min, Max and Product of
// numbers, except Min and Max of complex numbers; Min (and), Max (or), Sum (or)
// and Product (and) of bool.
bool IsReducible(DType dtype, ReduceOp op);

// Type of partial results of `dtype`: float32 for half-precision types, `dtype`
// itself for all others.
DType AccumulatorOf(DType dtype);

// accumulator[i] = scale * input[i], converted from `dtype` to
// AccumulatorOf(dtype). The scale is rounded to that type first, and the
// product is computed in it. A scale of 1 changes no bit. Integers are scaled
// in float64 and truncated toward zero (saturating). Both parts of complex
// numbers are scaled. Bool ignores scales. A null `input` gives zeros.
void LoadAccumulator(DType dtype, void* accumulator, const void* input,
                     int64_t count, double scale);

// accumulator[i] = accumulator[i] (op) scale * input[i]. Average adds: its
// caller divides by the divisor of StoreAccumulator. Only for operations that
// IsReducible allows. Sums and products of integers wrap around. Min and Max
// give NaN if either side is NaN. Product of complex numbers: (ac - bd) + (ad +
// bc)i in the type of the parts, as NumPy multiplies. If both parts become NaN
// they stay NaN, as in (inf - inf i) * 1; C99 and std::complex would recover an
// infinity.
void Accumulate(DType dtype, ReduceOp op, void* accumulator, const void* input,
                int64_t count, double scale);

// output[i] = accumulator[i] * scale / divisor: a product as above, divided by
// the divisor in the same type. The average of equal numbers is therefore that
// number (49 times 1 / 49 is less than 1). For integers only the quotient is
// truncated. The result is rounded to `dtype`, to nearest even. `output` may
// equal `accumulator` if the types are equal.
void StoreAccumulator(DType dtype, void* output, const void* accumulator,
                      int64_t count, double scale, double divisor = 1.0);

// Parameters of a reduction of several inputs.
struct ReduceOptions {
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;   // for each input, before the reduction
  double postscale = 1.0;  // for the result
  double divisor = 1.0;    // for the result; see StoreAccumulator
};

// An average as a sum that is divided by the number of ranks. For powers of two
// it is multiplied by the inverse, which gives the same bits.
ReduceOptions AverageAsSum(const ReduceOptions& options, size_t ranks);

// output[i] = inputs[0][i] (op) inputs[1][i] (op) ..., in this order, with the
// result of the three functions above in sequence. A null input stands for
// zeros. `copy`, if not null, gets the same result. Both may equal inputs. Only
// for operations that IsReducible allows except Average: see AverageAsSum.
// `stores` selects the stores to `output`, which must not be an input if it is
// streamed; the function then ends with a fence.
void ReduceInputs(const ReduceOptions& options,
                  const std::vector<const void*>& inputs, int64_t count,
                  void* output, void* copy = nullptr,
                  Stores stores = Stores::kOrdinary);

}  // namespace tf_hvd

#endif  // TF_HVD_COMPUTE_BUFFER_OPS_H_
