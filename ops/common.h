// What the signatures of the collectives share.
//
// The names, inputs, outputs and attributes are those of Horovod's ops, so
// that graphs and code that use them mean the same here. Attributes of our own
// have defaults. An int attribute `reduce_op` holds a ReduceOp of
// runtime/types.h.
#ifndef TF_HVD_OPS_COMMON_H_
#define TF_HVD_OPS_COMMON_H_

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_hvd {

// The types of the table in runtime/types.h. Which reduce operations a type
// allows is for IsReducible (kernels/buffer_ops.h) to say, when the op runs.
inline constexpr char kTypeAttr[] =
    "T: {uint8, int8, uint16, int16, int32, int64, half, float, double, bool, "
    "bfloat16}";

inline constexpr char kReduceOpAttr[] = "reduce_op: int";
// TensorFlow has no attribute of type double: a factor is a float32. No
// defaults: the generated Python wrapper would write them as the int 1, which
// costs each eager call that leaves them out several times what the call takes.
inline constexpr char kPrescaleAttr[] = "prescale_factor: float";
inline constexpr char kPostscaleAttr[] = "postscale_factor: float";
inline constexpr char kIgnoreNameScopeAttr[] =
    "ignore_name_scope: bool = false";
inline constexpr char kProcessSetAttr[] = "process_set_id: int = 0";
inline constexpr char kWireNameAttr[] = "wire_name: string = ''";

// Output i has the shape of input i, for any number of tensors.
inline absl::Status SameShapes(
    ::tensorflow::shape_inference::InferenceContext* c) {
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->input(i));
  return absl::OkStatus();
}

}  // namespace tf_hvd

#endif  // TF_HVD_OPS_COMMON_H_
