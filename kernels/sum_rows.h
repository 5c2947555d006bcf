// How HorovodSumRows sums the rows of a type, and what it checks. Knows nothing
// of TensorFlow; any thread.
#ifndef TF_HVD_KERNELS_SUM_ROWS_H_
#define TF_HVD_KERNELS_SUM_ROWS_H_

#include <cstdint>

#include "base/status.h"
#include "base/types.h"
#include "compute/sum_rows_cpu.h"

namespace tf_hvd {

// How the elements of a type are summed.
struct SumWay {
  void (*sum)(const SumRowsArguments&, int64_t begin, int64_t end);
  int64_t parts;  // of an element: a complex number has two
};

Status FindSumWay(DType dtype, SumWay* way);

// An error if `order` and `ends` leave the rows.
Status CheckOrder(const SumRowsArguments& arguments);

}  // namespace tf_hvd

#endif  // TF_HVD_KERNELS_SUM_ROWS_H_
