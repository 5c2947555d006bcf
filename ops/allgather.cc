// HorovodAllgather and HorovodGroupedAllgather: the tensors of all ranks, one
// after the other.
#include "ops/common.h"

namespace tf_hvd {

REGISTER_OP("HorovodAllgather")
    .Attr(kTypeAttr)
    .Attr(kIgnoreNameScopeAttr)
    .Attr(kProcessSetAttr)
    .Attr(kWireNameAttr)
    .Input("tensor: T")
    .Output("output: T")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(AllOtherRows)
    .Doc(WithNameDocs(R"doc(
Concatenates the tensors of all ranks of a process set along dimension 0.

All ranks must call it under the same name with the same type and the same
dimensions but the first; if they do not, it fails on every rank with a
FailedPreconditionError. A scalar is an InvalidArgumentError.

tensor: At least one dimension; the first may differ between ranks, also be 0.
output: The parts in the order of the set's ranks; its first dimension is the
  sum of theirs.
)doc"));

REGISTER_OP("HorovodGroupedAllgather")
    .Attr(kTypeAttr)
    .Attr(kIgnoreNameScopeAttr)
    .Attr(kProcessSetAttr)
    .Attr(kNumTensorsAttr)
    .Attr(kWireNameAttr)
    .Attr(kMemberNamesAttr)
    .Input("tensors: num_tensors * T")
    .Output("outputs: num_tensors * T")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(AllOtherRows)
    .Doc(WithGroupDocs(R"doc(
Concatenates tensors of one type over the ranks of a process set, as one request.

What must agree between ranks is as for HorovodAllgather, for each member, and
the number of members. The first dimensions of all members travel together.

tensors: At least one dimension each; the first may differ between ranks and
  members, also be 0.
outputs: Of each member the parts in the order of the set's ranks.
T: The type of all members.
)doc"));

}  // namespace tf_hvd
