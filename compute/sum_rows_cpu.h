// Sums of rows on the CPU, with the bits of device_sums.h. As buffer_ops.h: any
// thread, with the same bits on each.
#ifndef TF_HVD_COMPUTE_SUM_ROWS_CPU_H_
#define TF_HVD_COMPUTE_SUM_ROWS_CPU_H_

#include <cstdint>

#include "compute/device_sums.h"

namespace tf_hvd {

// Sums [begin, end) of them, row by row; the order must not leave the rows. For
// the types of TF_HVD_DEVICE_SUMS.
template <typename T>
void SumRowsOnCpu(const SumRowsArguments& arguments, int64_t begin,
                  int64_t end);

}  // namespace tf_hvd

#endif  // TF_HVD_COMPUTE_SUM_ROWS_CPU_H_
