// HorovodBroadcast, HorovodBroadcastInplace, HorovodBroadcastInplaceResource:
// what one rank has, on every rank.
#include "ops/common.h"

namespace tf_hvd {
namespace {

constexpr char kRootRankAttr[] = "root_rank: int";
constexpr char kNumVariablesAttr[] = "num_variables: int >= 1";
constexpr char kVariableNamesAttr[] = "variable_names: list(string)";

[[maybe_unused]] const auto broadcast =
    RegisterCollective("HorovodBroadcast", [](OpBuilder* op) {
      AddAttributes(op, {kTypeAttr, kRootRankAttr, kIgnoreNameScopeAttr,
                         kProcessSetAttr});
      AddTensors(op, Takes::kTensor, "output");
      op->SetShapeFn(SameShapes).Doc(WithNameDocs(R"doc(
Gives every rank of a process set the tensor of one of them.

All ranks must call it under the same name with the same type, shape and root;
if they do not, it fails on every rank with a FailedPreconditionError. A root
that is not in the set is an InvalidArgumentError.

tensor: Any shape, also empty. Only the root's values are used.
output: The root's values. On the root it shares the memory of `tensor`.
root_rank: A rank of the whole job, also when the set is a part of it.
)doc"));
    });

// Both in-place forms are called for their effect: tf.function puts them in
// order with what reads and writes the same variables.
[[maybe_unused]] const auto broadcast_inplace =
    RegisterCollective("HorovodBroadcastInplace", [](OpBuilder* op) {
      AddAttributes(
          op, {kTypeAttr, kRootRankAttr, kProcessSetAttr, kNumVariablesAttr,
               kVariableNamesAttr, kIgnoreNameScopeAttr});
      op->Input("tensor_refs: Ref(num_variables * T)")
          .Output("output_refs: Ref(num_variables * T)")
          // The kernel refuses it instead, so that the other ranks are told.
          .SetAllowsUninitializedInput()
          .SetShapeFn(SameShapes)
          .Doc(WithNameDocs(R"doc(
Gives reference variables the values that they have on one rank.

The variables of a call are one request. All ranks must pass the same variables
in the same order, of the same types and shapes; if they do not, it fails on
every rank with a FailedPreconditionError. An uninitialized variable is an
InvalidArgumentError on every rank. Values are written into the variables'
memory while other ops may read it: order such ops before or after this one.

tensor_refs: Initialized reference variables of one type.
output_refs: The same.
root_rank: A rank of the whole job, also when the set is a part of it.
num_variables: How many variables.
variable_names: The variables' names, or nothing; for comparison between ranks
  and for errors.
)doc"));
    });

[[maybe_unused]] const auto broadcast_inplace_resource =
    RegisterCollective("HorovodBroadcastInplaceResource", [](OpBuilder* op) {
      AddAttributes(op, {kRootRankAttr, kProcessSetAttr, kNumVariablesAttr,
                         kVariableNamesAttr, kIgnoreNameScopeAttr});
      op->Input("resources: num_variables * resource")
          .SetShapeFn(::tensorflow::shape_inference::NoOutputs)
          .Doc(WithNameDocs(R"doc(
Gives resource variables the values that they have on one rank.

The variables of a call are one request. All ranks must pass the same variables
in the same order, of the same types and shapes; if they do not, it fails on
every rank with a FailedPreconditionError. A variable that is uninitialized or
was deleted, or whose type no collective takes, is an InvalidArgumentError on
every rank.

No other memory is used than that of the variables, but for a variable whose
value is still in use elsewhere (a tensor that was read from it): it gets new
memory. Order ops that read or write the variables before or after this one; a
write in between is lost, a read may see parts of both values.

resources: Handles of initialized variables; types may be mixed.
root_rank: A rank of the whole job, also when the set is a part of it.
num_variables: How many variables.
variable_names: The variables' names, or nothing; for comparison between ranks
  and for errors.
)doc"));
    });

}  // namespace
}  // namespace tf_hvd
