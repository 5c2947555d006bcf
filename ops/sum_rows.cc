// HorovodSumRows: local sums of rows, for IndexedSlices. Not stateful: equal
// calls are one.
#include "ops/common.h"

namespace tf_hvd {
namespace {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

absl::Status SumShape(InferenceContext* c) {
  ShapeHandle values;
  ShapeHandle ends;
  ShapeHandle order;
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), 1, &values));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &order));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &ends));
  if (!c->RankKnown(values)) {
    c->set_output(0, c->UnknownShape());
    return absl::OkStatus();
  }
  ShapeHandle sums;
  TF_RETURN_IF_ERROR(c->ReplaceDim(values, 0, c->Dim(ends, 0), &sums));
  c->set_output(0, sums);
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("HorovodSumRows")
    .Attr(
        "T: {uint8, int8, uint16, int16, int32, int64, uint32, uint64, float, "
        "double, complex64, complex128}")
    .Input("values: T")
    .Input("order: int64")
    .Input("ends: int64")
    .Output("sums: T")
    .SetShapeFn(SumShape)
    .Doc(R"doc(
Sums of rows, each formed from zero in the order in which its rows are listed:
the same bits each time. On the CPU only.

Nothing is communicated. Integers wrap around. An order that leaves the rows is
an InvalidArgumentError.

values: Of shape [n, ...].
order: Of shape [n]: the numbers of the rows of the first sum, then those of the
  second, and so on.
ends: Of shape [count]: where each sum's numbers end in order.
sums: Of shape [count, ...]. Zeros where a sum has no rows.
)doc");

}  // namespace tf_hvd
