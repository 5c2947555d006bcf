// Storage, accumulation and combination of elements of each type, for the loops
// of buffer_ops_cpu.cc.
#ifndef TF_HVD_COMPUTE_BUFFER_OPS_ELEMENTS_H_
#define TF_HVD_COMPUTE_BUFFER_OPS_ELEMENTS_H_

#include <complex>
#include <cstdint>
#include <type_traits>

#include "compute/scaling.h"
#include "compute/stored_elements.h"

namespace tf_hvd {

template <typename T>
struct IsComplexNumber : std::false_type {};
template <typename T>
struct IsComplexNumber<std::complex<T>> : std::true_type {};

// Sums and products of integers wrap around. C++ guarantees this only for
// unsigned arithmetic; small types would otherwise be promoted to a signed int.
template <typename T>
using Wrapping =
    std::conditional_t<sizeof(T) == sizeof(uint64_t), uint64_t, uint32_t>;

struct AddOp {
  template <typename T>
  static TF_HVD_INLINE T Apply(T a, T b) {
    if constexpr (std::is_floating_point_v<T> || IsComplexNumber<T>::value) {
      return a + b;
    } else {
      return static_cast<T>(static_cast<Wrapping<T>>(a) +
                            static_cast<Wrapping<T>>(b));
    }
  }
};

struct MultiplyOp {
  template <typename T>
  static TF_HVD_INLINE T Apply(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      return a * b;
    } else if constexpr (IsComplexNumber<T>::value) {
      // Term by term, as NumPy and TensorFlow multiply. std::complex would turn
      // some NaNs into infinities, at the cost of a call for each product.
      return {a.real() * b.real() - a.imag() * b.imag(),
              a.real() * b.imag() + a.imag() * b.real()};
    } else {
      return static_cast<T>(static_cast<Wrapping<T>>(a) *
                            static_cast<Wrapping<T>>(b));
    }
  }
};

// `a != a` is true only for NaN: `a` is then kept. A NaN in `b` loses every
// comparison and is taken.
struct MinOp {
  template <typename T>
  static TF_HVD_INLINE T Apply(T a, T b) {
    return (a < b || a != a) ? a : b;
  }
};

struct MaxOp {
  template <typename T>
  static TF_HVD_INLINE T Apply(T a, T b) {
    return (a > b || a != a) ? a : b;
  }
};

struct AndOp {
  static TF_HVD_INLINE uint8_t Apply(uint8_t a, uint8_t b) { return a & b; }
};

struct OrOp {
  static TF_HVD_INLINE uint8_t Apply(uint8_t a, uint8_t b) { return a | b; }
};

// Applies to each part of a complex number.
template <typename T>
TF_HVD_INLINE T Product(T value, double scale) {
  if constexpr (IsComplexNumber<T>::value) {
    return {ScaledReal(value.real(), scale), ScaledReal(value.imag(), scale)};
  } else {
    return ScaledReal(value, scale);
  }
}

template <typename T>
TF_HVD_INLINE T Quotient(T value, double scale, double divisor) {
  if constexpr (IsComplexNumber<T>::value) {
    return {QuotientReal(value.real(), scale, divisor),
            QuotientReal(value.imag(), scale, divisor)};
  } else {
    return QuotientReal(value, scale, divisor);
  }
}

}  // namespace tf_hvd

#endif  // TF_HVD_COMPUTE_BUFFER_OPS_ELEMENTS_H_
