// Multiplies a number by a factor, on the CPU and on a GPU. The factor is
// rounded to the number's type, and the product is computed in that type, as in
// NumPy. For integers both are float64, and the product is truncated toward
// zero.
#ifndef TF_HVD_COMPUTE_SCALING_H_
#define TF_HVD_COMPUTE_SCALING_H_

#include "compute/portable.h"

namespace tf_hvd {

// True for types with fractions. (GPU code has no <type_traits>.)
template <typename T>
inline constexpr bool kHasFractions = static_cast<T>(0.5) != static_cast<T>(0);

template <typename T>
struct IntegerRange {
  static constexpr bool kSigned = static_cast<T>(-1) < static_cast<T>(0);
  static constexpr int kDigits = static_cast<int>(sizeof(T)) * 8 - kSigned;
  static constexpr T kMax = static_cast<T>(~uint64_t{0} >> (64 - kDigits));
  static constexpr T kMin =
      kSigned ? static_cast<T>(-kMax - 1) : static_cast<T>(0);
  // One more than the largest.
  static constexpr double kEnd =
      2.0 * static_cast<double>(uint64_t{1} << (kDigits - 1));
};

// `value` rounded toward zero; the end of the range if it is outside of it, 0
// for NaN.
template <typename T>
TF_HVD_INLINE T TruncateSaturating(double value) {
  using Range = IntegerRange<T>;
  if (value >= Range::kEnd) return Range::kMax;
  if (value <= static_cast<double>(Range::kMin)) return Range::kMin;
  return value == value ? static_cast<T>(value) : T{0};
}

template <typename T>
TF_HVD_INLINE T ScaledReal(T value, double scale) {
  if constexpr (kHasFractions<T>) {
    return value * static_cast<T>(scale);
  } else {
    return TruncateSaturating<T>(static_cast<double>(value) * scale);
  }
}

// The product, divided, as for an average. The average of equal numbers is that
// number, which a product with 1 / divisor would not ensure.
template <typename T>
TF_HVD_INLINE T QuotientReal(T value, double scale, double divisor) {
  if constexpr (kHasFractions<T>) {
    return ScaledReal(value, scale) / static_cast<T>(divisor);
  } else {
    const double product = static_cast<double>(value) * scale;
    return TruncateSaturating<T>(product / divisor);
  }
}

}  // namespace tf_hvd

#endif  // TF_HVD_COMPUTE_SCALING_H_
