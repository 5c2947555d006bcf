// Reduction, scaling and conversion of elements in raw memory. A leaf: knows
// neither TensorFlow nor the transports; only the table of types.
//
// Pure functions on the given memory; any thread, with the same bits on each
// (a thread's setting to flush denormals does not count). Buffers may be
// unaligned to anything but the element's size. Overlapping buffers must be
// equal.
#ifndef TF_HVD_COMPUTE_BUFFER_OPS_H_
#define TF_HVD_COMPUTE_BUFFER_OPS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/types.h"
#include "compute/streaming.h"

namespace tf_hvd {

// True if `op` is defined for `dtype`: Sum, Average, Min, Max and Product of
// numbers, but no Min and Max of complex ones; Min (and), Max (or), Sum (or)
// and Product (and) of bool.
bool IsReducible(DType dtype, ReduceOp op);

// Type in which partial results of `dtype` are held: float32 for the half
// precisions, `dtype` itself for all others.
DType AccumulatorOf(DType dtype);

// accumulator[i] = scale * input[i], converted from `dtype` to
// AccumulatorOf(dtype), in which the product is formed: the scale is rounded to
// that type first. A scale of 1 changes no bit. Integers are scaled in float64
// and truncated toward zero (saturating), complex numbers each part for itself;
// bool ignores scales. A null `input` gives zeros.
void LoadAccumulator(DType dtype, void* accumulator, const void* input,
                     int64_t count, double scale);

// accumulator[i] = accumulator[i] (op) scale * input[i]. Average adds: its
// caller divides by the divisor of StoreAccumulator. Only for what IsReducible
// allows. Sums and products of integers wrap around.
// NaN: Min and Max give NaN if either side is NaN.
// Product of complex numbers: (ac - bd) + (ad + bc)i in the type of the parts,
// as NumPy multiplies. Where both parts become NaN they stay so, as in
// (inf - inf i) * 1; C99 and std::complex would look for an infinity there.
void Accumulate(DType dtype, ReduceOp op, void* accumulator, const void* input,
                int64_t count, double scale);

// output[i] = accumulator[i] * scale / divisor: a product as above, and its
// quotient by the divisor in the same type, so that the average of equal
// numbers is that number (49 times 1 / 49 is less than 1); of integers only the
// quotient is truncated. Then rounded to `dtype`, to nearest even. `output` may
// equal `accumulator` when the types are equal.
void StoreAccumulator(DType dtype, void* output, const void* accumulator,
                      int64_t count, double scale, double divisor = 1.0);

// What is done with the elements of several inputs.
struct ReduceOptions {
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;   // on each input, before the reduction
  double postscale = 1.0;  // on the result
  double divisor = 1.0;    // of the result; see StoreAccumulator
};

// An average as a sum that is divided by the number of ranks; where that has
// the same bits, which is by powers of two, multiplied with the inverse.
ReduceOptions AverageAsSum(const ReduceOptions& options, size_t ranks);

// output[i] = inputs[0][i] (op) inputs[1][i] (op) ..., in this order, as the
// three functions above do it one after the other; a null input stands for
// zeros. `copy`, if not null, gets the same. Both may equal inputs. Only for
// what IsReducible allows, and not for Average: see AverageAsSum. `stores` is
// how `output` is written, which must be no input if it is streamed; then a
// fence is the last that is done.
void ReduceInputs(const ReduceOptions& options,
                  const std::vector<const void*>& inputs, int64_t count,
                  void* output, void* copy = nullptr,
                  Stores stores = Stores::kOrdinary);

}  // namespace tf_hvd

#endif  // TF_HVD_COMPUTE_BUFFER_OPS_H_
