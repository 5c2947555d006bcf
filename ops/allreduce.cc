// HorovodAllreduce and HorovodGroupedAllreduce: tensors, reduced over the ranks
// of a process set.
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
    .Attr(kCompressionAttr)
    .Input("tensor: T")
    .Output("sum: T")
    // Stateful: equal calls are neither merged nor folded. See the table of
    // registrations in docs/adr and tests/python/single/registration_test.py.
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(SameShapes)
    .Doc(WithNameDocs(WithReductionDocs(R"doc(
Reduces a tensor over all ranks of a process set; every rank gets the result.

All ranks must call it under the same name with the same type, shape, reduce
operation and factors; if they do not, it fails on every rank with a
FailedPreconditionError that shows what two of them have.

tensor: Any shape, also empty.
sum: The shape of `tensor`: postscale_factor * op over ranks of
  (prescale_factor * tensor). Half precisions are summed in float32.
)doc")));

REGISTER_OP("HorovodGroupedAllreduce")
    .Attr(kTypeAttr)
    .Attr(kReduceOpAttr)
    .Attr(kPrescaleAttr)
    .Attr(kPostscaleAttr)
    .Attr(kIgnoreNameScopeAttr)
    .Attr(kProcessSetAttr)
    .Attr(kNumTensorsAttr)
    .Attr(kWireNameAttr)
    .Attr(kCompressionAttr)
    .Attr(kMemberNamesAttr)
    .Input("tensors: num_tensors * T")
    .Output("sum: num_tensors * T")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(SameShapes)
    .Doc(WithGroupDocs(WithReductionDocs(R"doc(
Reduces tensors of one type over all ranks of a process set, as one request.

No member is reduced before all ranks have called for all of them, and they
travel together. What must agree between ranks is as for HorovodAllreduce, for
each member, and the number of members.

tensors: Any shapes, also empty ones.
sum: The shape of each is that of its input.
)doc")));

}  // namespace tf_hvd
