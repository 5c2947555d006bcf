// Tensors of TensorFlow's in the memory of a GPU, as the runtime wants to know
// of them. No header of CUDA is needed: TensorFlow gives its stream as a
// pointer.
#ifndef TF_HVD_KERNELS_GPU_MEMORY_H_
#define TF_HVD_KERNELS_GPU_MEMORY_H_

#include "kernels/tf_compat.h"
#include "runtime/api/runtime.h"
#include "runtime/base/status.h"
#include "runtime/request/entry.h"

namespace tf_hvd {

// Says of the entry, whose tensors have been added, that they lie on the GPU
// that the kernel runs on: records on TensorFlow's stream what they have to be
// waited for, and again when the entry's outputs have been allocated. On the
// thread that runs the kernel.
Status PlaceOnGpu(const Runtime& runtime, tf::OpKernelContext* ctx,
                  Entry* entry);

}  // namespace tf_hvd

#endif  // TF_HVD_KERNELS_GPU_MEMORY_H_
