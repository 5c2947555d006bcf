// HorovodAllgather: the tensors of all ranks, one after the other.
#include "ops/common.h"

namespace tf_hvd {
namespace {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

// The input's shape with an unknown first dimension, for other ranks add to
// it. A scalar is not refused here: refused while one rank builds its graph,
// the other ranks would wait for that rank; the kernel fails them all.
absl::Status GatheredShape(InferenceContext* c) {
  const ShapeHandle input = c->input(0);
  if (!c->RankKnown(input) || c->Rank(input) == 0) {
    c->set_output(0, c->UnknownShape());
    return absl::OkStatus();
  }
  ShapeHandle output;
  TF_RETURN_IF_ERROR(c->ReplaceDim(input, 0, c->UnknownDim(), &output));
  c->set_output(0, output);
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("HorovodAllgather")
    .Attr(kTypeAttr)
    .Attr(kIgnoreNameScopeAttr)
    .Attr(kProcessSetAttr)
    .Attr(kWireNameAttr)
    .Input("tensor: T")
    .Output("output: T")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(GatheredShape)
    .Doc(R"doc(
Concatenates the tensors of all ranks of a process set along dimension 0.

All ranks must call it under the same name with the same type and the same
dimensions but the first; if they do not, it fails on every rank with a
FailedPreconditionError. A scalar is an InvalidArgumentError.

tensor: At least one dimension; the first may differ between ranks, also be 0.
output: The parts in the order of the set's ranks; its first dimension is the
  sum of theirs.
ignore_name_scope: Take only what follows the last '/' of the node's name as
  the name that ranks match calls by.
process_set_id: 0 is all ranks.
wire_name: When not empty, the name that ranks match calls by.
)doc");

}  // namespace tf_hvd
