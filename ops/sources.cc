// HorovodBroadcastNumber, HorovodIdentify, HorovodCountReduction: this
// process's table of variables with reduced gradients
// (runtime/request/sources.h). Local.
//
// Each op takes the number of a list of variables. Another process that loads
// the graph does not know that list. The ops are stateful, since each run reads
// or changes the process's table.
#include "ops/common.h"

namespace tf_hvd {

using ::tensorflow::shape_inference::NoOutputs;
using ::tensorflow::shape_inference::ScalarShape;

REGISTER_OP("HorovodBroadcastNumber")
    .Attr("root_rank: int")
    .Input("list: int64")
    .Output("number: int64")
    .SetIsStateful()
    .SetShapeFn(ScalarShape)
    .Doc(R"doc(
Gets the number that identifies a broadcast of these variables.

Nothing is communicated: take the minimum across the ranks to get the root's number.
Fails with a FailedPreconditionError before init.

root_rank: The root of the broadcast, as a rank of the job.
list: A scalar: the number of the list.
number: A scalar. On the root it is random, or the previous number if these
  variables were already broadcast together in this order. On other ranks it is
  the largest int64.
)doc");

REGISTER_OP("HorovodIdentify")
    .Input("list: int64")
    .Input("number: int64")
    .SetIsStateful()
    .SetShapeFn(NoOutputs)
    .Doc(R"doc(
Records that variables were broadcast: `number` and the place in the list identify
each of them.

Nothing is communicated.

list: A scalar: the number of the list.
number: A scalar: the result of HorovodBroadcastNumber on the root.
)doc");

REGISTER_OP("HorovodCountReduction")
    .Attr("num_variables: int >= 0")
    .Attr("source_list: int")
    .Attr(kProcessSetAttr)
    .Input("variables: num_variables * resource")
    .Output("count: int64")
    .SetIsStateful()
    .SetShapeFn(ScalarShape)
    .Doc(R"doc(
Counts a reduction of the gradients of these variables.

Nothing is communicated.

source_list: The number of the list.
num_variables: 1; 0 for reference variables.
variables: The first variable. A loaded graph has different variables, and so a
  separate count.
count: A scalar: the number of reductions, including this one, since the job
  began or the ranks last joined.
process_set_id: The process set of the counted reductions; 0 is all ranks.
)doc");

}  // namespace tf_hvd
