// The only place that knows which version of TensorFlow is meant: includes and
// spellings that change between versions go here and nowhere else. Written for
// 2.18 to 2.21; each has its own ABI, the wheel checks that it has met its own.
#ifndef TF_HVD_KERNELS_TF_COMPAT_H_
#define TF_HVD_KERNELS_TF_COMPAT_H_

#include <cstdint>
#include <optional>

#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/control_flow.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/mutex.h"
#include "tensorflow/core/platform/status.h"
#include "tensorflow/core/platform/threadpool.h"
#include "xla/stream_executor/stream.h"

namespace tf_hvd {

namespace tf = ::tensorflow;

// True inside a loop of the graph executor, where calls of one node may run at
// the same time and only their iteration tells them apart.
inline bool InLoop(const tf::FrameAndIter& frame) {
  return frame.frame_id != 0 || frame.iter_id != 0;
}

// The stream (CUstream) on which the kernels of a GPU compute; null on the CPU.
inline void* StreamOf(tf::OpKernelContext* ctx) {
  const tf::DeviceContext* const context = ctx->op_device_context();
  if (context == nullptr || context->stream() == nullptr) return nullptr;
  return context->stream()->platform_specific_handle().stream;
}

// An error that follows from another one, which is the one to be shown.
inline absl::Status Derived(const absl::Status& status) {
  return tf::StatusGroup::MakeDerived(status);
}

// Shards of a size that follows from the nanoseconds that a unit takes.
// TensorFlow 2.20 named the strategies; before, the constructor was called,
// which 2.20 deprecates: of the two, only what is there is instantiated.
template <typename Params>
auto AdaptiveParams(int64_t cost,
                    int /*first*/) -> decltype(Params::Adaptive(cost)) {
  return Params::Adaptive(cost);
}

template <typename Params>
Params AdaptiveParams(int64_t cost, ...) {
  return Params(tf::thread::ThreadPool::SchedulingStrategy::kAdaptive, cost,
                std::nullopt);
}

inline tf::thread::ThreadPool::SchedulingParams AdaptiveShards(int64_t cost) {
  return AdaptiveParams<tf::thread::ThreadPool::SchedulingParams>(cost, 0);
}

}  // namespace tf_hvd

#endif  // TF_HVD_KERNELS_TF_COMPAT_H_
