// Sums over ranks on a GPU: vectors that lie one behind the other are added in
// their order, each element by one thread: the same bits each time, and those
// of the CPU. The functions are those of one thread of a launch.
// device_sums.cu.cc makes kernels of them; the software GPU of the tests calls
// the very same.
#ifndef TF_HVD_COMPUTE_DEVICE_SUMS_H_
#define TF_HVD_COMPUTE_DEVICE_SUMS_H_

#include "compute/portable.h"

namespace tf_hvd {

// The one argument of the kernels. All memory is the device's.
struct SumArguments {
  const void* vectors;  // [ranks, count]
  void* sums;           // [count]
  int64_t ranks;
  int64_t count;
};

inline constexpr int kSumThreads = 256;
// Each thread takes several elements where there are more.
inline constexpr int64_t kSumBlocks = 1 << 20;

// What thread `thread` of the `threads` of one of the `blocks` does. Unsigned
// sums wrap around; signed ones have their bits.
template <typename T>
TF_HVD_INLINE void SumBlock(const SumArguments& arguments, int64_t block,
                            int64_t blocks, int thread, int threads) {
  const auto* const vectors = static_cast<const T*>(arguments.vectors);
  const int64_t count = arguments.count;
  for (int64_t i = block * threads + thread; i < count; i += blocks * threads) {
    T sum = T{0};
    for (int64_t rank = 0; rank < arguments.ranks; ++rank) {
      sum = static_cast<T>(sum + vectors[rank * count + i]);
    }
    static_cast<T*>(arguments.sums)[i] = sum;
  }
}

// Kernels: name, type of the elements.
#define TF_HVD_DEVICE_SUMS(KERNEL)    \
  KERNEL(tf_hvd_sum_uint8, uint8_t)   \
  KERNEL(tf_hvd_sum_uint16, uint16_t) \
  KERNEL(tf_hvd_sum_uint32, uint32_t) \
  KERNEL(tf_hvd_sum_uint64, uint64_t) \
  KERNEL(tf_hvd_sum_float32, float)   \
  KERNEL(tf_hvd_sum_float64, double)

}  // namespace tf_hvd

#endif  // TF_HVD_COMPUTE_DEVICE_SUMS_H_
