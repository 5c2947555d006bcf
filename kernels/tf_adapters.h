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

// InvalidArgument for a type that is missing from the table of types.
Status ToDType(tf::DataType from, DType* to);

std::vector<int64_t> ToDims(const tf::TensorShape& shape);

// Gets the type and shape of a tensor.
Status ToSpec(const tf::Tensor& tensor, TensorSpec* spec);

// kInvalidArgument, kFailedPrecondition and kInternal become the codes of the
// same name; Python sees tf.errors.InvalidArgumentError and so on. kAborted
// becomes UNKNOWN, as in Horovod: on ABORTED and UNAVAILABLE, TensorFlow's
// MonitoredSession creates a new session and repeats the step indefinitely.
absl::Status ToTensorFlow(const Status& status);

// An error from TensorFlow while a call is prepared counts as the environment's
// fault (memory) unless its code says otherwise.
Status FromTensorFlow(const absl::Status& status);

}  // namespace tf_hvd

#endif  // TF_HVD_KERNELS_TF_ADAPTERS_H_
