// The only file that depends on the version of TensorFlow: includes and
// spellings that change between versions go here and nowhere else. Written for
// 2.18 to 2.21. Each version has its own ABI; the wheel checks that it runs
// with the matching one.
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
// the same time and differ only in their iteration.
inline bool InLoop(const tf::FrameAndIter& frame) {
  return frame.frame_id != 0 || frame.iter_id != 0;
}

// The stream (CUstream) on which the kernels of a GPU compute; null on the CPU.
inline void* StreamOf(tf::OpKernelContext* ctx) {
  const tf::DeviceContext* const context = ctx->op_device_context();
  if (context == nullptr || context->stream() == nullptr) return nullptr;
  return context->stream()->platform_specific_handle().stream;
}

// An error that follows from another one, which should be shown instead.
inline absl::Status Derived(const absl::Status& status) {
  return tf::StatusGroup::MakeDerived(status);
}

// Shards sized by the nanoseconds that a unit takes. TensorFlow 2.20 named the
// strategies. Earlier versions have a constructor, which 2.20 deprecates. Only
// the form that exists is instantiated.
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
