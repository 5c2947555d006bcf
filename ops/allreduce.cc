// HorovodAllreduce and HorovodGroupedAllreduce: reduce tensors across the ranks
// of a process set.
#include "ops/common.h"

namespace tf_hvd {
namespace {

void Describe(OpBuilder* op, Takes takes) {
  AddAttributes(op,
                {kTypeAttr, kReduceOpAttr, kPrescaleAttr, kPostscaleAttr,
                 kIgnoreNameScopeAttr, kProcessSetAttr},
                takes, /*reduces=*/true);
  AddTensors(op, takes, "sum");
  op->SetShapeFn(SameShapes);
}

[[maybe_unused]] const auto allreduce =
    RegisterCollective("HorovodAllreduce", [](OpBuilder* op) {
      Describe(op, Takes::kTensor);
      op->Doc(WithNameDocs(WithReductionDocs(R"doc(
Reduces a tensor across all ranks of a process set; every rank gets the result.

All ranks must call it under the same name with the same type, shape, reduce
operation and factors. Otherwise it fails on every rank with a
FailedPreconditionError that shows the values of two ranks.

tensor: Any shape; may be empty.
sum: Same shape as `tensor`: postscale_factor * op over ranks of
  (prescale_factor * tensor). Half precisions are summed in float32.
)doc")));
    });

[[maybe_unused]] const auto grouped_allreduce =
    RegisterCollective("HorovodGroupedAllreduce", [](OpBuilder* op) {
      Describe(op, Takes::kGroupAndStep);
      op->Doc(WithStepDocs(WithReductionDocs(R"doc(
Reduces tensors of one type across all ranks of a process set, as one request.

No member is reduced before all ranks have called the op, and the members are
sent together. The members must satisfy the rules of HorovodAllreduce, and ranks
must agree on the number of members.

tensors: Any shapes; may be empty.
sum: One result per input, with the input's shape.
)doc")));
    });

}  // namespace
}  // namespace tf_hvd
