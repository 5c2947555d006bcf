// The only translation between TensorFlow's types and the runtime's. Pure
// functions; any thread.
#ifndef TF_HVD_KERNELS_TF_ADAPTERS_H_
#define TF_HVD_KERNELS_TF_ADAPTERS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "base/status.h"
#include "base/types.h"
#include "kernels/tf_compat.h"
#include "runtime/request/request.h"

namespace tf_hvd {

// InvalidArgument for a type that the table of types does not have; the
// signatures of the ops let none through.
Status ToDType(tf::DataType from, DType* to);

std::vector<int64_t> ToDims(const tf::TensorShape& shape);

// Type and shape of a tensor.
Status ToSpec(const tf::Tensor& tensor, TensorSpec* spec);

// kInvalidArgument, kFailedPrecondition and kInternal become the codes of the
// same name; Python sees tf.errors.InvalidArgumentError and so on. kAborted
// becomes UNKNOWN, as in Horovod: on ABORTED, and on UNAVAILABLE, TensorFlow's
// MonitoredSession makes a new session and runs the step again, without end.
absl::Status ToTensorFlow(const Status& status);

// What TensorFlow fails with while a call is being prepared is the
// environment's fault (memory) unless the code says otherwise.
Status FromTensorFlow(const absl::Status& status);

}  // namespace tf_hvd

#endif  // TF_HVD_KERNELS_TF_ADAPTERS_H_
