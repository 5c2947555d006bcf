// Storage of each type's elements in memory, and the type used for computation.
// On the CPU and on a GPU; see portable.h.
#ifndef TF_HVD_COMPUTE_STORED_ELEMENTS_H_
#define TF_HVD_COMPUTE_STORED_ELEMENTS_H_

#include "compute/half_float.h"
#include "compute/portable.h"

namespace tf_hvd {

// Stored: the type in memory. Accumulated: the type of partial results.
template <typename T>
struct NativeElement {
  using Stored = T;
  using Accumulated = T;
  static TF_HVD_INLINE T Load(T stored) { return stored; }
  static TF_HVD_INLINE T Store(T value) { return value; }
};

struct HalfElement {
  using Stored = uint16_t;
  using Accumulated = float;
  static TF_HVD_INLINE float Load(uint16_t stored) {
    return HalfToFloat(stored);
  }
  static TF_HVD_INLINE uint16_t Store(float value) {
    return FloatToHalf(value);
  }
};

struct BfloatElement {
  using Stored = uint16_t;
  using Accumulated = float;
  static TF_HVD_INLINE float Load(uint16_t stored) {
    return BfloatToFloat(stored);
  }
  static TF_HVD_INLINE uint16_t Store(float value) {
    return FloatToBfloat(value);
  }
};

// Any byte but 0 counts as true, so that `and` and `or` work on single bits.
struct BoolElement {
  using Stored = uint8_t;
  using Accumulated = uint8_t;
  static TF_HVD_INLINE uint8_t Load(uint8_t stored) {
    return stored != 0 ? 1 : 0;
  }
  static TF_HVD_INLINE uint8_t Store(uint8_t value) { return value; }
};

}  // namespace tf_hvd

#endif  // TF_HVD_COMPUTE_STORED_ELEMENTS_H_
