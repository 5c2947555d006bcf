// HorovodAlltoall: each rank sends some of its rows to each rank.
#include "ops/common.h"

namespace tf_hvd {
namespace {

using ::tensorflow::shape_inference::DimensionHandle;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

// `received_splits` has one element per rank of the set: as many as `splits`,
// unless `splits` is empty. Invalid splits and scalars are refused when the op
// runs.
absl::Status ExchangedShapes(InferenceContext* c) {
  TF_RETURN_IF_ERROR(OtherRows(c, 1));
  const ShapeHandle splits = c->input(1);
  DimensionHandle ranks = c->UnknownDim();
  if (c->RankKnown(splits) && c->Rank(splits) == 1 &&
      c->ValueKnown(c->Dim(splits, 0)) && c->Value(c->Dim(splits, 0)) > 0) {
    ranks = c->Dim(splits, 0);
  }
  c->set_output(1, c->Vector(ranks));
  return absl::OkStatus();
}

[[maybe_unused]] const auto alltoall =
    RegisterCollective("HorovodAlltoall", [](OpBuilder* op) {
      AddAttributes(op, {kTypeAttr, kIgnoreNameScopeAttr, kProcessSetAttr});
      op->Input("tensor: T")
          .Input("splits: int32")
          .Output("output: T")
          .Output("received_splits: int32")
          .SetShapeFn(ExchangedShapes)
          .Doc(WithNameDocs(R"doc(
Sends rows of each rank's tensor to each rank of a process set.

All ranks must call it under the same name with the same type and the same
dimensions except the first. Otherwise it fails on every rank with a
FailedPreconditionError. A scalar, or splits that do not fit the tensor or the
set, cause an InvalidArgumentError on every rank.

tensor: At least one dimension; the first may differ between ranks.
splits: Number of rows for each rank of the set, in the order of the ranks: the
  first splits[0] rows go to the first rank and so on. Rows beyond their sum are
  not sent. Empty: the same number for each rank; the first dimension must then
  be divisible by the number of ranks.
output: The received rows, in the order of the set's ranks.
received_splits: Number of rows received from each rank.
)doc"));
    });

}  // namespace
}  // namespace tf_hvd
