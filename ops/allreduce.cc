// HorovodAllreduce: one tensor, reduced over the ranks of a process set.
#include "ops/common.h"

namespace tf_hvd {

REGISTER_OP("HorovodAllreduce")
    .Attr(kTypeAttr)
    .Attr(kReduceOpAttr)
    .Attr(kPrescaleAttr)
    .Attr(kPostscaleAttr)
    .Attr(kIgnoreNameScopeAttr)
    .Attr(kProcessSetAttr)
    .Attr(kWireNameAttr)
    .Input("tensor: T")
    .Output("sum: T")
    // Stateful: equal calls are neither merged nor folded. See the table of
    // registrations in docs/adr and tests/python/single/registration_test.py.
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(SameShapes)
    .Doc(R"doc(
Reduces a tensor over all ranks of a process set; every rank gets the result.

All ranks must call it under the same name with the same type, shape, reduce
operation and factors; if they do not, it fails on every rank with a
FailedPreconditionError that shows what two of them have.

tensor: Any shape, also empty.
sum: The shape of `tensor`: postscale_factor * op over ranks of
  (prescale_factor * tensor). Half precisions are summed in float32.
T: bool is reduced by Min and Product (and), Max and Sum (or).
reduce_op: 0 Average, 1 Sum, 3 Min, 4 Max, 5 Product; 2, Adasum, is refused.
prescale_factor: Multiplied with the input. Integers are scaled in float64 and
  truncated toward zero.
postscale_factor: Multiplied with the result.
ignore_name_scope: Take only what follows the last '/' of the node's name as
  the name that ranks match calls by.
process_set_id: 0 is all ranks.
wire_name: When not empty, the name that ranks match calls by.
)doc");

}  // namespace tf_hvd
