// Compares results bit by bit, except for the bits of NaNs. Which of two NaNs a
// sum keeps depends on the order in which a compiler writes its operands, and
// so on the target processor.
#ifndef TF_HVD_TESTS_COMPUTE_NAN_AWARE_H_
#define TF_HVD_TESTS_COMPUTE_NAN_AWARE_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/types.h"
#include "compute/half_float.h"

namespace tf_hvd {

// For numbers; the parts of a complex number count separately.
inline size_t PartBytes(DType dtype) {
  const bool complex =
      dtype == DType::kComplex64 || dtype == DType::kComplex128;
  return complex ? SizeOf(dtype) / 2 : SizeOf(dtype);
}

inline bool IsNan(DType dtype, const char* part) {
  const auto read = [part](auto value) {
    std::memcpy(&value, part, sizeof(value));
    return value;
  };
  switch (dtype) {
    case DType::kFloat16:
      return std::isnan(HalfToFloat(read(uint16_t{})));
    case DType::kBfloat16:
      return std::isnan(BfloatToFloat(read(uint16_t{})));
    case DType::kFloat32:
    case DType::kComplex64:
      return std::isnan(read(float{}));
    case DType::kFloat64:
    case DType::kComplex128:
      return std::isnan(read(double{}));
    default:
      return false;
  }
}

// The first byte of the first number of `got` that differs from `expected`; -1
// if none does.
inline int64_t FirstDifference(DType dtype, std::string_view got,
                               std::string_view expected) {
  if (got.size() != expected.size()) return 0;
  const size_t bytes = PartBytes(dtype);
  for (size_t i = 0; i < got.size(); i += bytes) {
    if (std::memcmp(&got[i], &expected[i], bytes) == 0) continue;
    if (IsNan(dtype, &got[i]) && IsNan(dtype, &expected[i])) continue;
    return static_cast<int64_t>(i);
  }
  return -1;
}

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_COMPUTE_NAN_AWARE_H_
