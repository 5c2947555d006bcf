// HorovodBroadcast: one rank's tensor, on every rank.
#include "ops/common.h"

namespace tf_hvd {

REGISTER_OP("HorovodBroadcast")
    .Attr(kTypeAttr)
    .Attr("root_rank: int")
    .Attr(kIgnoreNameScopeAttr)
    .Attr(kProcessSetAttr)
    .Attr(kWireNameAttr)
    .Input("tensor: T")
    .Output("output: T")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(SameShapes)
    .Doc(R"doc(
Gives every rank of a process set the tensor of one of them.

All ranks must call it under the same name with the same type, shape and root;
if they do not, it fails on every rank with a FailedPreconditionError. A root
that is not in the set is an InvalidArgumentError.

tensor: Any shape, also empty. Only the root's values are used.
output: The root's values. On the root it shares the memory of `tensor`.
root_rank: A rank of the whole job, also when the set is a part of it.
ignore_name_scope: Take only what follows the last '/' of the node's name as
  the name that ranks match calls by.
process_set_id: 0 is all ranks.
wire_name: When not empty, the name that ranks match calls by.
)doc");

}  // namespace tf_hvd
