// Shared parts of the collectives' signatures.
//
// Names, inputs, outputs and attributes are those of Horovod's ops, so that
// graphs and code that use them work unchanged. Our additional attributes have
// defaults. An int attribute `reduce_op` holds a ReduceOp of base/types.h.
#ifndef TF_HVD_OPS_COMMON_H_
#define TF_HVD_OPS_COMMON_H_

#include <functional>
#include <initializer_list>
#include <string>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_hvd {

// Any type, although only those of the table in base/types.h are supported. If
// TensorFlow refused a type here, the call would fail only on this rank, and
// the others would wait for it. The kernel reports the error to all ranks. It
// also checks with IsReducible (compute/buffer_ops.h) which reduce operations
// the type allows.
inline constexpr char kTypeAttr[] = "T: type";

inline constexpr char kReduceOpAttr[] = "reduce_op: int";
// TensorFlow has no attribute of type double: kExactFactorsAttr holds the bits
// of both factors if a float32 is not exact. The factors have no defaults: the
// generated Python wrapper would write them as the int 1, which makes each
// eager call that omits them several times slower.
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

// Registers a collective when the library is loaded, as REGISTER_OP would;
// `describe` adds the parts specific to the op. All collectives are stateful:
// equal calls are neither merged nor folded. See the table of registrations in
// docs/adr and tests/python/single/registration_test.py.
inline ::tensorflow::InitOnStartupMarker RegisterCollective(
    const char* name, const std::function<void(OpBuilder*)>& describe) {
  OpBuilder op(name);
  describe(&op);
  op.SetIsStateful().SetIsDistributedCommunication();
  return op();
}

// Whether an op takes one tensor or a group of them, and whether the caller may
// pass its step.
enum class Takes { kTensor, kGroup, kGroupAndStep };

// Adds the attributes of Horovod's op in their order, then our own, which have
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

// Adds the tensor or the group as input, and one result for each.
inline void AddTensors(OpBuilder* op, Takes takes, const std::string& output) {
  if (takes == Takes::kTensor) {
    op->Input("tensor: T").Output(output + ": T");
    return;
  }
  op->Input("tensors: num_tensors * T").Output(output + ": num_tensors * T");
  if (takes == Takes::kGroupAndStep) op->Input("stamp: stamp_count * int64");
}

// Appends the documentation of shared attributes to an op's own.
inline std::string WithNameDocs(std::string doc) {
  return doc +
         R"doc(ignore_name_scope: Use only the part of the node's name after the last '/' as
  the name by which ranks match calls.
process_set_id: The process set; 0 is all ranks.
wire_name: If not empty, the name by which ranks match calls.
)doc";
}

inline std::string WithGroupDocs(const std::string& doc) {
  return WithNameDocs(doc + R"doc(num_tensors: Number of tensors.
member_names: The members' names, or empty. If ranks have different names, or the
  same names in a different order, they get an error that shows them.
)doc");
}

inline std::string WithStepDocs(const std::string& doc) {
  return WithGroupDocs(
      doc +
      R"doc(stamp: Empty, or a scalar: the caller's step. Ranks at different steps get an
  error that shows both; a negative step is not compared. Or shape [2]: the step
  and the number of the list of variables that the tensors are gradients of.
  Ranks with different variables get an error that names one variable of each.
stamp_count: 0 or 1.
)doc");
}

inline std::string WithReductionDocs(const std::string& doc) {
  return doc +
         R"doc(T: bool is reduced by Min and Product (and), Max and Sum (or); complex numbers
  by Sum, Average and Product.
reduce_op: 0 Average, 1 Sum, 3 Min, 4 Max, 5 Product; 2 Adasum (floating types,
  allreduce only).
prescale_factor: Factor for the input. Integers are scaled in float64 and
  truncated toward zero.
postscale_factor: Factor for the result.
compression: Name of the caller's compression of the tensors; empty for none.
  Ranks with different compressions get an error that shows both.
exact_factors: The bits of both factors as float64 if float32 cannot represent
  them exactly; otherwise empty.
wire_dtype: "float16" or "bfloat16": cast float32 tensors to this type, reduce
  them in it and cast back. On a GPU the casts are part of packing. Empty: no
  cast.
)doc";
}

// Output i has the shape of input i, for any number of tensors.
inline absl::Status SameShapes(
    ::tensorflow::shape_inference::InferenceContext* c) {
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->input(i));
  return absl::OkStatus();
}

// Output i has the shape of input i with an unknown first dimension. A scalar
// is accepted here: if one rank refused it while building its graph, the other
// ranks would wait for that rank. The kernel fails the call on all ranks.
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

// One output for each input, for any number of tensors.
inline absl::Status AllOtherRows(
    ::tensorflow::shape_inference::InferenceContext* c) {
  return OtherRows(c, c->num_outputs());
}

}  // namespace tf_hvd

#endif  // TF_HVD_OPS_COMMON_H_
