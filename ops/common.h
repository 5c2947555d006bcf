// What the signatures of the collectives share.
//
// The names, inputs, outputs and attributes are those of Horovod's ops, so
// that graphs and code that use them mean the same here. Attributes of our own
// have defaults. An int attribute `reduce_op` holds a ReduceOp of
// base/types.h.
#ifndef TF_HVD_OPS_COMMON_H_
#define TF_HVD_OPS_COMMON_H_

#include <functional>
#include <initializer_list>
#include <string>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_hvd {

// Any type, although only those of the table in base/types.h are moved:
// what TensorFlow refused here would fail on this rank alone, and the others
// would wait for its call. The kernel tells all ranks. It also asks IsReducible
// (compute/buffer_ops.h) which reduce operations the type allows.
inline constexpr char kTypeAttr[] = "T: type";

inline constexpr char kReduceOpAttr[] = "reduce_op: int";
// TensorFlow has no attribute of type double: kExactFactorsAttr holds the bits
// of both factors where a float32 is not enough. No defaults: the generated
// Python wrapper would write them as the int 1, which costs each eager call
// that leaves them out several times what the call takes.
inline constexpr char kPrescaleAttr[] = "prescale_factor: float";
inline constexpr char kPostscaleAttr[] = "postscale_factor: float";
inline constexpr char kIgnoreNameScopeAttr[] =
    "ignore_name_scope: bool = false";
inline constexpr char kProcessSetAttr[] = "process_set_id: int = 0";
inline constexpr char kWireNameAttr[] = "wire_name: string = ''";
inline constexpr char kCompressionAttr[] = "compression: string = ''";
inline constexpr char kWireDtypeAttr[] = "wire_dtype: string = ''";
inline constexpr char kExactFactorsAttr[] = "exact_factors: list(int) = []";
inline constexpr char kNumTensorsAttr[] = "num_tensors: int >= 1";
inline constexpr char kMemberNamesAttr[] = "member_names: list(string) = []";
inline constexpr char kStepCountAttr[] = "stamp_count: int >= 0 = 0";

using OpBuilder = ::tensorflow::register_op::OpDefBuilderWrapper;

// Registers a collective while the library is loaded, as REGISTER_OP would;
// `describe` adds what is its own. All of them are stateful: equal calls are
// neither merged nor folded. See the table of registrations in docs/adr and
// tests/python/single/registration_test.py.
inline ::tensorflow::InitOnStartupMarker RegisterCollective(
    const char* name, const std::function<void(OpBuilder*)>& describe) {
  OpBuilder op(name);
  describe(&op);
  op.SetIsStateful().SetIsDistributedCommunication();
  return op();
}

// Whether an op takes one tensor or a group of them; and whether the caller
// may say in which step it is.
enum class Takes { kTensor, kGroup, kGroupAndStep };

// Attributes: those of Horovod's op in its order, then our own, which have
// defaults.
inline void AddAttributes(OpBuilder* op,
                          std::initializer_list<const char*> horovods,
                          Takes takes = Takes::kTensor, bool reduces = false) {
  for (const char* attribute : horovods) op->Attr(attribute);
  if (takes != Takes::kTensor) op->Attr(kNumTensorsAttr);
  op->Attr(kWireNameAttr);
  if (reduces) {
    op->Attr(kCompressionAttr).Attr(kExactFactorsAttr).Attr(kWireDtypeAttr);
  }
  if (takes != Takes::kTensor) op->Attr(kMemberNamesAttr);
  if (takes == Takes::kGroupAndStep) op->Attr(kStepCountAttr);
}

// The tensor or the group, and the results, one for each.
inline void AddTensors(OpBuilder* op, Takes takes, const std::string& output) {
  if (takes == Takes::kTensor) {
    op->Input("tensor: T").Output(output + ": T");
    return;
  }
  op->Input("tensors: num_tensors * T").Output(output + ": num_tensors * T");
  if (takes == Takes::kGroupAndStep) op->Input("stamp: stamp_count * int64");
}

// Documentation of the attributes that an op shares with others, to be added
// to its own.
inline std::string WithNameDocs(std::string doc) {
  return doc +
         R"doc(ignore_name_scope: Take only what follows the last '/' of the node's name as
  the name that ranks match calls by.
process_set_id: 0 is all ranks.
wire_name: When not empty, the name that ranks match calls by.
)doc";
}

inline std::string WithGroupDocs(const std::string& doc) {
  return WithNameDocs(doc + R"doc(num_tensors: How many tensors.
member_names: The members' names, or nothing. Ranks whose members have other
  names, or the same in another order, get an error that shows them.
)doc");
}

inline std::string WithStepDocs(const std::string& doc) {
  return WithGroupDocs(
      doc +
      R"doc(stamp: Nothing, or the step that the caller is at, a scalar. Ranks at different
  steps get an error that shows both; negative is none. Or of shape [2]: the
  step, and the number of the list of variables whose gradients the tensors are.
  Ranks whose variables differ get an error that names one of each.
stamp_count: 0 or 1.
)doc");
}

inline std::string WithReductionDocs(const std::string& doc) {
  return doc +
         R"doc(T: bool is reduced by Min and Product (and), Max and Sum (or); complex numbers
  by Sum, Average and Product.
reduce_op: 0 Average, 1 Sum, 3 Min, 4 Max, 5 Product; 2 Adasum (floating types,
  allreduce only).
prescale_factor: Multiplies the input. Integers are scaled in float64 and
  truncated toward zero.
postscale_factor: Multiplies the result.
compression: How the caller made the tensors smaller, in words; empty for not at
  all. Ranks that differ in it get an error that shows both.
exact_factors: The bits of both factors as float64, where those are not what
  float32 has; else nothing.
wire_dtype: "float16" or "bfloat16": what float32 tensors are cast to, reduced as
  and cast back from, in one pass with what packs them on a GPU. Empty: T itself.
)doc";
}

// Output i has the shape of input i, for any number of tensors.
inline absl::Status SameShapes(
    ::tensorflow::shape_inference::InferenceContext* c) {
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->input(i));
  return absl::OkStatus();
}

// Output i has the shape of input i with an unknown first dimension. A scalar
// is not refused here: refused while one rank builds its graph, the other ranks
// would wait for that rank; the kernel fails them all.
inline absl::Status OtherRows(
    ::tensorflow::shape_inference::InferenceContext* c, int outputs) {
  for (int i = 0; i < outputs; ++i) {
    ::tensorflow::shape_inference::ShapeHandle output = c->UnknownShape();
    if (c->RankKnown(c->input(i)) && c->Rank(c->input(i)) > 0) {
      TF_RETURN_IF_ERROR(
          c->ReplaceDim(c->input(i), 0, c->UnknownDim(), &output));
    }
    c->set_output(i, output);
  }
  return absl::OkStatus();
}

// For any number of tensors, one output for each input.
inline absl::Status AllOtherRows(
    ::tensorflow::shape_inference::InferenceContext* c) {
  return OtherRows(c, c->num_outputs());
}

}  // namespace tf_hvd

#endif  // TF_HVD_OPS_COMMON_H_
