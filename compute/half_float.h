// float16 and bfloat16 as bits, to and from float32. Conversion to float32 is
// exact; conversion from float32 rounds once, to nearest even. NaN stays NaN;
// infinities and denormals are kept.
//
// The CPU code has no branches and no table, so that compilers vectorize loops
// over it; it does not need F16C. The caller must not have set the processor to
// flush denormals. A GPU uses its own instructions, which give the same bits
// except for those of a NaN.
#ifndef TF_HVD_COMPUTE_HALF_FLOAT_H_
#define TF_HVD_COMPUTE_HALF_FLOAT_H_

#include "compute/portable.h"

namespace tf_hvd {

TF_HVD_INLINE float FloatOfBits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

TF_HVD_INLINE uint32_t BitsOfFloat(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// `a` if the condition holds, else `b`. Uses a mask: for `?:` compilers keep a
// branch if one side is an addition of floats, which might trap.
TF_HVD_INLINE uint32_t Select(bool condition, uint32_t a, uint32_t b) {
  const uint32_t mask = 0u - static_cast<uint32_t>(condition);
  return (a & mask) | (b & ~mask);
}

#ifdef TF_HVD_CONVERTS_HALFS

TF_HVD_INLINE float HalfToFloat(uint16_t half) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  return value;
}

TF_HVD_INLINE uint16_t FloatToHalf(float value) {
  uint16_t half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return half;
}

#else

TF_HVD_INLINE float HalfToFloat(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fffu) << 13;
  constexpr uint32_t kRebias = (127u - 15u) << 23;
  // Infinity and NaN have the largest exponent in either format.
  const uint32_t normal =
      magnitude + Select(magnitude >= 0x0f800000u, 2 * kRebias, kRebias);
  // A denormal is a number of units of 2^-24. Used as the mantissa of a float
  // of at least 2^-14 it is exact, but too large by 2^-14. (Multiplying
  // would also work, but denormal floats are slow.)
  const float denormal =
      FloatOfBits(magnitude + kRebias + 0x00800000u) - 0x1p-14f;
  const uint32_t bits =
      Select(magnitude < 0x00800000u, BitsOfFloat(denormal), normal);
  return FloatOfBits(bits | sign);
}

TF_HVD_INLINE uint16_t FloatToHalf(float value) {
  const uint32_t bits = BitsOfFloat(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  // The sign is cleared, so the comparison can be signed, which old vector
  // units support.
  const int32_t magnitude = static_cast<int32_t>(bits & 0x7fffffffu);
  const uint32_t unsigned_magnitude = static_cast<uint32_t>(magnitude);
  // Normal: move the exponent's bias and round. A carry out of the mantissa
  // correctly goes into the exponent, and from there to infinity.
  const uint32_t odd = (unsigned_magnitude >> 13) & 1u;
  const uint32_t normal =
      (unsigned_magnitude - 0x38000000u + 0xfffu + odd) >> 13;
  // Denormal: adding 0.5 moves the unit of a denormal half to the last bit of
  // the sum, so the addition does the rounding.
  const uint32_t denormal =
      BitsOfFloat(FloatOfBits(unsigned_magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t nan = 0x7e00u | ((unsigned_magnitude >> 13) & 0x3ffu);
  const uint32_t special = Select(magnitude > 0x7f800000, nan, 0x7c00u);
  const uint32_t finite = Select(magnitude < 0x38800000, denormal, normal);
  const uint32_t result = Select(magnitude >= 0x47800000, special, finite);
  return static_cast<uint16_t>(result | sign);
}

#endif  // TF_HVD_CONVERTS_HALFS

TF_HVD_INLINE float BfloatToFloat(uint16_t bfloat) {
  return FloatOfBits(static_cast<uint32_t>(bfloat) << 16);
}

#ifdef TF_HVD_CONVERTS_BFLOATS

TF_HVD_INLINE uint16_t FloatToBfloat(float value) {
  uint16_t bfloat;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bfloat) : "f"(value));
  return bfloat;
}

#else

TF_HVD_INLINE uint16_t FloatToBfloat(float value) {
  const uint32_t bits = BitsOfFloat(value);
  const int32_t magnitude = static_cast<int32_t>(bits & 0x7fffffffu);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>(magnitude > 0x7f800000 ? nan : rounded);
}

#endif  // TF_HVD_CONVERTS_BFLOATS

}  // namespace tf_hvd

#endif  // TF_HVD_COMPUTE_HALF_FLOAT_H_
