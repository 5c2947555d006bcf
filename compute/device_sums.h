// Sums over ranks on a GPU: contiguous vectors are added in their order, each
// element by one thread. The bits are the same each time and equal to those of
// the CPU. The functions here are those of one thread of a launch.
// device_sums.cu.cc makes kernels of them; the software GPU of the tests calls
// the same functions.
#ifndef TF_HVD_COMPUTE_DEVICE_SUMS_H_
#define TF_HVD_COMPUTE_DEVICE_SUMS_H_

#include "compute/portable.h"

namespace tf_hvd {

// The single argument of the kernels. All memory is on the device.
struct SumArguments {
  const void* vectors;  // [ranks, count]
  void* sums;           // [count]
  int64_t ranks;
  int64_t count;
};

inline constexpr int kSumThreads = 256;
// Each thread adds several elements if there are more elements than threads.
inline constexpr int64_t kSumBlocks = 1 << 20;

// The work of thread `thread` of the `threads` of one of the `blocks`. Unsigned
// sums wrap around and have the same bits as signed ones.
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

// Kernels: name and type of the elements.
#define TF_HVD_DEVICE_SUMS(KERNEL)    \
  KERNEL(tf_hvd_sum_uint8, uint8_t)   \
  KERNEL(tf_hvd_sum_uint16, uint16_t) \
  KERNEL(tf_hvd_sum_uint32, uint32_t) \
  KERNEL(tf_hvd_sum_uint64, uint64_t) \
  KERNEL(tf_hvd_sum_float32, float)   \
  KERNEL(tf_hvd_sum_float64, double)

}  // namespace tf_hvd

#endif  // TF_HVD_COMPUTE_DEVICE_SUMS_H_
