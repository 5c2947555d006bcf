// HorovodGroupedAllreduce: several tensors, agreed on and reduced as one.
#include "ops/common.h"

namespace tf_hvd {

REGISTER_OP("HorovodGroupedAllreduce")
    .Attr(kTypeAttr)
    .Attr(kReduceOpAttr)
    .Attr(kPrescaleAttr)
    .Attr(kPostscaleAttr)
    .Attr(kIgnoreNameScopeAttr)
    .Attr(kProcessSetAttr)
    .Attr("num_tensors: int >= 1")
    .Attr(kWireNameAttr)
    .Input("tensors: num_tensors * T")
    .Output("sum: num_tensors * T")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(SameShapes)
    .Doc(R"doc(
Reduces tensors of one type over all ranks of a process set, as one request.

No member is reduced before all ranks have called for all of them, and they
travel together. What must agree between ranks is as for HorovodAllreduce, for
each member, and the number of members.

tensors: Any shapes, also empty ones.
sum: The shape of each is that of its input.
T: The type of all members.
reduce_op: 0 Average, 1 Sum, 3 Min, 4 Max, 5 Product; 2, Adasum, is refused.
prescale_factor: Multiplied with the inputs. Integers are scaled in float64 and
  truncated toward zero.
postscale_factor: Multiplied with the results.
ignore_name_scope: Take only what follows the last '/' of the node's name as
  the name that ranks match calls by.
process_set_id: 0 is all ranks.
num_tensors: How many tensors.
wire_name: When not empty, the name that ranks match calls by.
)doc");

}  // namespace tf_hvd
