// HorovodAllreduce and HorovodGroupedAllreduce: tensors, reduced over the ranks
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
Reduces a tensor over all ranks of a process set; every rank gets the result.

All ranks must call it under the same name with the same type, shape, reduce
operation and factors; if they do not, it fails on every rank with a
FailedPreconditionError that shows what two of them have.

tensor: Any shape, also empty.
sum: The shape of `tensor`: postscale_factor * op over ranks of
  (prescale_factor * tensor). Half precisions are summed in float32.
)doc")));
    });

[[maybe_unused]] const auto grouped_allreduce =
    RegisterCollective("HorovodGroupedAllreduce", [](OpBuilder* op) {
      Describe(op, Takes::kGroupAndStep);
      op->Doc(WithStepDocs(WithReductionDocs(R"doc(
Reduces tensors of one type over all ranks of a process set, as one request.

No member is reduced before all ranks have called for all of them, and they
travel together. What must agree between ranks is as for HorovodAllreduce, for
each member, and the number of members.

tensors: Any shapes, also empty ones.
sum: The shape of each is that of its input.
)doc")));
    });

}  // namespace
}  // namespace tf_hvd
