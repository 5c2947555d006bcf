// How HorovodSumRows sums the rows of a type, and what it checks. Knows nothing
// of TensorFlow; any thread.
#ifndef TF_HVD_KERNELS_SUM_ROWS_H_
#define TF_HVD_KERNELS_SUM_ROWS_H_

#include <cstdint>
#include <string>

#include "compute/sum_rows_cpu.h"
#include "runtime/api/runtime.h"
#include "runtime/base/status.h"
#include "runtime/base/types.h"

namespace tf_hvd {

// How the elements of a type are summed.
struct SumWay {
  const char* kernel;  // the GPU's
  void (*on_cpu)(const SumRowsArguments&, int64_t begin, int64_t end);
  int64_t parts;  // of an element: a complex number has two
};

Status FindSumWay(DType dtype, SumWay* way);

// On the CPU: an error if `order` and `ends` leave the rows.
Status CheckOrder(const SumRowsArguments& arguments);

// Puts the sums on a stream; `where`: see FindDevice.
Status SumRowsOnGpu(const Runtime& runtime, void* stream,
                    const std::string& where, const SumWay& way,
                    SumRowsArguments arguments);

}  // namespace tf_hvd

#endif  // TF_HVD_KERNELS_SUM_ROWS_H_
