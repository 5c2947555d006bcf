// HorovodReducescatter and HorovodGroupedReducescatter: tensors, reduced over
// the ranks of a process set; each rank gets some rows of the result.
#include "ops/common.h"

namespace tf_hvd {
namespace {

void Describe(OpBuilder* op, Takes takes, const char* output) {
  AddAttributes(op,
                {kTypeAttr, kReduceOpAttr, kIgnoreNameScopeAttr, kPrescaleAttr,
                 kPostscaleAttr, kProcessSetAttr},
                takes, /*reduces=*/true);
  AddTensors(op, takes, output);
  op->SetShapeFn(AllOtherRows);
}

[[maybe_unused]] const auto reducescatter =
    RegisterCollective("HorovodReducescatter", [](OpBuilder* op) {
      Describe(op, Takes::kTensor, "output");
      op->Doc(WithNameDocs(WithReductionDocs(R"doc(
Reduces a tensor over all ranks of a process set; each gets its part of the rows.

All ranks must call it under the same name with the same type, shape, reduce
operation and factors; if they do not, it fails on every rank with a
FailedPreconditionError. A scalar is an InvalidArgumentError on every rank.

tensor: At least one dimension.
output: Some rows of postscale_factor * op over ranks of (prescale_factor *
  tensor). Of R rows and N ranks each rank gets R / N, and the first R % N ranks
  one more, in the order of the set's ranks; that may be none.
)doc")));
    });

[[maybe_unused]] const auto grouped_reducescatter =
    RegisterCollective("HorovodGroupedReducescatter", [](OpBuilder* op) {
      Describe(op, Takes::kGroup, "outputs");
      op->Doc(WithGroupDocs(WithReductionDocs(R"doc(
Reduces tensors of one type and scatters the rows of each, as one request.

What must agree between ranks is as for HorovodReducescatter, for each member,
and the number of members.

tensors: At least one dimension each.
outputs: Of each member this rank's rows, as HorovodReducescatter divides them.
)doc")));
    });

}  // namespace
}  // namespace tf_hvd
