// HorovodReducescatter and HorovodGroupedReducescatter: reduce tensors over the
// ranks of a process set and give each rank some rows of the result.
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
Reduces a tensor across all ranks of a process set; each gets its part of the rows.

All ranks must call it under the same name with the same type, shape, reduce
operation and factors. Otherwise it fails on every rank with a
FailedPreconditionError. A scalar causes an InvalidArgumentError on every rank.

tensor: At least one dimension.
output: Some rows of postscale_factor * op over ranks of (prescale_factor *
  tensor). With R rows and N ranks, each rank gets R / N rows, and the first
  R % N ranks get one more, in the order of the set's ranks. A rank may get none.
)doc")));
    });

[[maybe_unused]] const auto grouped_reducescatter =
    RegisterCollective("HorovodGroupedReducescatter", [](OpBuilder* op) {
      Describe(op, Takes::kGroup, "outputs");
      op->Doc(WithGroupDocs(WithReductionDocs(R"doc(
Reduces tensors of one type and scatters the rows of each, as one request.

The members must satisfy the rules of HorovodReducescatter, and ranks must agree
on the number of members.

tensors: At least one dimension each.
outputs: For each member, this rank's rows, divided as by HorovodReducescatter.
)doc")));
    });

}  // namespace
}  // namespace tf_hvd
