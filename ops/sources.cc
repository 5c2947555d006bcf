// HorovodBroadcastNumber, HorovodIdentify, HorovodCountReduction: what this
// process knows of variables whose gradients are reduced
// (runtime/request/sources.h). Local.
//
// Each has the number of a list of variables, which another process that loads
// the graph does not know. Stateful, since each
// run reads or changes the process's table.
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
The number by which a broadcast of these variables identifies them.

Nothing is communicated: a minimum over the ranks makes it that of the root.
Fails with a FailedPreconditionError before init.

root_rank: The root of the broadcast, by its rank in the job.
list: A scalar: the number of the list.
number: A scalar. On the root it is random; the same again for variables that
  have been broadcast together in this order before. On other ranks it is the
  largest int64.
)doc");

REGISTER_OP("HorovodIdentify")
    .Input("list: int64")
    .Input("number: int64")
    .SetIsStateful()
    .SetShapeFn(NoOutputs)
    .Doc(R"doc(
Notes that variables have been broadcast: each is known by `number` and its
place in the list.

Nothing is communicated.

list: A scalar: the number of the list.
number: A scalar: what the root's HorovodBroadcastNumber gave.
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
variables: The first one. A graph that was loaded has others, and a count of its
  own.
count: A scalar: how many there are, with this one, since the job began or the
  ranks last joined.
process_set_id: Whose reductions are counted; 0 is all ranks.
)doc");

}  // namespace tf_hvd
