// Sums of rows on a GPU: each element of the result by one thread, which adds
// its rows in the order in which they are listed: the same bits each time, and
// those of the CPU. The functions are those of one thread of a launch.
// device_sums.cu.cc makes kernels of them; the software GPU of the tests calls
// the very same.
#ifndef TF_HVD_COMPUTE_DEVICE_SUMS_H_
#define TF_HVD_COMPUTE_DEVICE_SUMS_H_

#include "compute/portable.h"

namespace tf_hvd {

// The one argument of the kernels. All memory is the device's.
struct SumRowsArguments {
  const void* values;  // [rows, columns]
  const int64_t*
      order;            // [rows]: the rows of each sum, one sum after the other
  const int64_t* ends;  // [sums]: one past the last of a sum's in `order`
  void* sums;           // [sums, columns]
  int64_t rows;
  int64_t sum_count;
  int64_t columns;
};

inline constexpr int kSumRowsThreads = 256;
// Each thread takes several elements where there are more.
inline constexpr int64_t kSumRowsBlocks = 1 << 20;

// Unsigned sums wrap around; signed ones have their bits.
template <typename T>
TF_HVD_INLINE T SumOf(T a, T b) {
  return static_cast<T>(a + b);
}

// 0 for a row that is not there: what lies beyond the values is not read.
template <typename T>
TF_HVD_INLINE T RowElement(const SumRowsArguments& arguments, int64_t at,
                           int64_t column) {
  const int64_t row = arguments.order[at];
  if (row < 0 || row >= arguments.rows) return T{0};
  return static_cast<const T*>(
      arguments.values)[row * arguments.columns + column];
}

template <typename T>
TF_HVD_INLINE T SumOfRows(const SumRowsArguments& arguments, int64_t sum,
                          int64_t column) {
  int64_t at = sum == 0 ? 0 : arguments.ends[sum - 1];
  int64_t end = arguments.ends[sum];
  if (at < 0) at = 0;
  if (end > arguments.rows) end = arguments.rows;
  T total = T{0};
  // Reads that do not wait for each other, and sums that do.
  constexpr int kAhead = 4;
  for (; end - at >= kAhead; at += kAhead) {
    T read[kAhead];
    for (int i = 0; i < kAhead; ++i) {
      read[i] = RowElement<T>(arguments, at + i, column);
    }
    for (int i = 0; i < kAhead; ++i) total = SumOf(total, read[i]);
  }
  for (; at < end; ++at) {
    total = SumOf(total, RowElement<T>(arguments, at, column));
  }
  return total;
}

// What thread `thread` of the `threads` of one of the `blocks` does.
template <typename T>
TF_HVD_INLINE void SumRowsBlock(const SumRowsArguments& arguments,
                                int64_t block, int64_t blocks, int thread,
                                int threads) {
  const int64_t total = arguments.sum_count * arguments.columns;
  for (int64_t i = block * threads + thread; i < total; i += blocks * threads) {
    static_cast<T*>(arguments.sums)[i] =
        SumOfRows<T>(arguments, i / arguments.columns, i % arguments.columns);
  }
}

// Kernels: name, type of the elements.
#define TF_HVD_DEVICE_SUMS(KERNEL)         \
  KERNEL(tf_hvd_sum_rows_uint8, uint8_t)   \
  KERNEL(tf_hvd_sum_rows_uint16, uint16_t) \
  KERNEL(tf_hvd_sum_rows_uint32, uint32_t) \
  KERNEL(tf_hvd_sum_rows_uint64, uint64_t) \
  KERNEL(tf_hvd_sum_rows_float32, float)   \
  KERNEL(tf_hvd_sum_rows_float64, double)

}  // namespace tf_hvd

#endif  // TF_HVD_COMPUTE_DEVICE_SUMS_H_
