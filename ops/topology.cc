// HorovodSize, HorovodRank, HorovodLocalRank, HorovodLocalSize,
// HorovodCrossRank, HorovodCrossSize, HorovodProcessSetIncluded: this rank's
// numbers, read when the graph runs, so that a saved graph fits any job.
//
// Stateful: otherwise TensorFlow would fold each into a constant, which is
// wrong in the next job that loads the graph.
#include "ops/common.h"

namespace tf_hvd {

using ::tensorflow::shape_inference::ScalarShape;

REGISTER_OP("HorovodSize")
    .Attr(kProcessSetAttr)
    .Output("size: int32")
    .SetIsStateful()
    .SetShapeFn(ScalarShape)
    .Doc(R"doc(
The number of ranks in a process set.

Fails with a FailedPreconditionError before init.

size: A scalar.
process_set_id: The process set; 0 is all ranks. An unknown set causes an
  InvalidArgumentError.
)doc");

REGISTER_OP("HorovodRank")
    .Output("rank: int32")
    .SetIsStateful()
    .SetShapeFn(ScalarShape)
    .Doc(R"doc(
This process's rank in the job, counted from 0.

Fails with a FailedPreconditionError before init.

rank: A scalar.
)doc");

REGISTER_OP("HorovodLocalRank")
    .Output("local_rank: int32")
    .SetIsStateful()
    .SetShapeFn(ScalarShape)
    .Doc(R"doc(
This process's rank among the ranks on its node, counted from 0.

Fails with a FailedPreconditionError before init.

local_rank: A scalar.
)doc");

REGISTER_OP("HorovodLocalSize")
    .Output("local_size: int32")
    .SetIsStateful()
    .SetShapeFn(ScalarShape)
    .Doc(R"doc(
The number of ranks on this process's node.

Fails with a FailedPreconditionError before init.

local_size: A scalar.
)doc");

REGISTER_OP("HorovodCrossRank")
    .Output("cross_rank: int32")
    .SetIsStateful()
    .SetShapeFn(ScalarShape)
    .Doc(R"doc(
The index of this process's node among the nodes that have its local rank.

Fails with a FailedPreconditionError before init.

cross_rank: A scalar.
)doc");

REGISTER_OP("HorovodCrossSize")
    .Output("cross_size: int32")
    .SetIsStateful()
    .SetShapeFn(ScalarShape)
    .Doc(R"doc(
The number of nodes that have this process's local rank.

Fails with a FailedPreconditionError before init.

cross_size: A scalar.
)doc");

REGISTER_OP("HorovodProcessSetIncluded")
    .Attr(kProcessSetAttr)
    .Output("included: int32")
    .SetIsStateful()
    .SetShapeFn(ScalarShape)
    .Doc(R"doc(
Whether this process is a member of a process set.

Fails with a FailedPreconditionError before init.

included: A scalar, 1 or 0.
process_set_id: The process set; 0 is all ranks. An unknown set causes an
  InvalidArgumentError.
)doc");

}  // namespace tf_hvd
