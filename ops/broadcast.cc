// HorovodBroadcast, HorovodBroadcastInplace, HorovodBroadcastInplaceResource:
// copy one rank's values to every rank.
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
Sends a tensor from one rank of a process set to all ranks of the set.

All ranks must call it under the same name with the same type, shape and root.
Otherwise it fails on every rank with a FailedPreconditionError. A root that is
not in the set causes an InvalidArgumentError.

tensor: Any shape; may be empty. Only the root's values are used.
output: The root's values. On the root it shares the memory of `tensor`.
root_rank: The root, as a rank of the whole job even if the set is a part of it.
)doc"));
    });

// Both in-place forms are called for their effect: tf.function orders them with
// other reads and writes of the same variables.
[[maybe_unused]] const auto broadcast_inplace =
    RegisterCollective("HorovodBroadcastInplace", [](OpBuilder* op) {
      AddAttributes(
          op, {kTypeAttr, kRootRankAttr, kProcessSetAttr, kNumVariablesAttr,
               kVariableNamesAttr, kIgnoreNameScopeAttr});
      op->Input("tensor_refs: Ref(num_variables * T)")
          .Output("output_refs: Ref(num_variables * T)")
          // The kernel refuses this instead, so that the error reaches the
          // other ranks.
          .SetAllowsUninitializedInput()
          .SetShapeFn(SameShapes)
          .Doc(WithNameDocs(R"doc(
Copies the values of reference variables from one rank to all ranks.

The variables of a call form one request. All ranks must pass the same variables
in the same order, with the same types and shapes. Otherwise it fails on every
rank with a FailedPreconditionError. An uninitialized variable causes an
InvalidArgumentError on every rank. Values are written into the variables' memory
even while other ops read it: order such ops before or after this one.

tensor_refs: Initialized reference variables of one type.
output_refs: The same references.
root_rank: The root, as a rank of the whole job even if the set is a part of it.
num_variables: Number of variables.
variable_names: The variables' names, or empty; used to compare ranks and in
  errors.
)doc"));
    });

[[maybe_unused]] const auto broadcast_inplace_resource =
    RegisterCollective("HorovodBroadcastInplaceResource", [](OpBuilder* op) {
      AddAttributes(op, {kRootRankAttr, kProcessSetAttr, kNumVariablesAttr,
                         kVariableNamesAttr, kIgnoreNameScopeAttr});
      op->Input("resources: num_variables * resource")
          .SetShapeFn(::tensorflow::shape_inference::NoOutputs)
          .Doc(WithNameDocs(R"doc(
Copies the values of resource variables from one rank to all ranks.

The variables of a call form one request. All ranks must pass the same variables
in the same order, with the same types and shapes. Otherwise it fails on every
rank with a FailedPreconditionError. A variable that is uninitialized, was
deleted, or has a type that collectives do not take causes an
InvalidArgumentError on every rank.

Values are received in the variables' own memory. Only a variable with a value
that is still in use elsewhere (a tensor that was read from it) gets new memory.
Order ops that read or write the variables before or after this one. A concurrent
write is lost; a concurrent read may see parts of both values.

resources: Handles of initialized variables; types may be mixed.
root_rank: The root, as a rank of the whole job even if the set is a part of it.
num_variables: Number of variables.
variable_names: The variables' names, or empty; used to compare ranks and in
  errors.
)doc"));
    });

}  // namespace
}  // namespace tf_hvd
