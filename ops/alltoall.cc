// HorovodAlltoall: each rank sends some of its rows to each rank.
#include "ops/common.h"

namespace tf_hvd {
namespace {

using ::tensorflow::shape_inference::DimensionHandle;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

// `received_splits` has an element for each rank of the set: so many as
// `splits`, unless that is empty. Wrong splits are refused when the op runs,
// as a scalar is.
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
dimensions but the first; if they do not, it fails on every rank with a
FailedPreconditionError. A scalar, and splits that do not fit the tensor or the
set, are InvalidArgumentErrors on every rank.

tensor: At least one dimension; the first may differ between ranks.
splits: How many rows go to each rank of the set, in the order of the ranks: the
  first splits[0] rows to the first rank and so on. Rows beyond their sum are
  not sent. Empty: the same number to each; the first dimension must then be
  divisible by the number of ranks.
output: The rows received, in the order of the set's ranks.
received_splits: How many rows came from each rank.
)doc"));
    });

}  // namespace
}  // namespace tf_hvd
