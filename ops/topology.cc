// HorovodSize, HorovodRank, HorovodLocalRank, HorovodLocalSize,
// HorovodCrossRank, HorovodCrossSize, HorovodProcessSetIncluded: the job as
// this rank sees it, read when the graph runs, so that a saved graph fits any
// job.
//
// Stateful, or a constant would take the place of a value that the next job
// that loads the graph does not have.
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
process_set_id: 0 is all ranks. An unknown set is an InvalidArgumentError.
)doc");

REGISTER_OP("HorovodRank")
    .Output("rank: int32")
    .SetIsStateful()
    .SetShapeFn(ScalarShape)
    .Doc(R"doc(
This process's number among all ranks, counted from 0.

Fails with a FailedPreconditionError before init.

rank: A scalar.
)doc");

REGISTER_OP("HorovodLocalRank")
    .Output("local_rank: int32")
    .SetIsStateful()
    .SetShapeFn(ScalarShape)
    .Doc(R"doc(
This process's number among the ranks of its node, counted from 0.

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
The number of this process's node among the nodes with a rank of its local rank.

Fails with a FailedPreconditionError before init.

cross_rank: A scalar.
)doc");

REGISTER_OP("HorovodCrossSize")
    .Output("cross_size: int32")
    .SetIsStateful()
    .SetShapeFn(ScalarShape)
    .Doc(R"doc(
The number of nodes with a rank of this process's local rank.

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
process_set_id: 0 is all ranks. An unknown set is an InvalidArgumentError.
)doc");

}  // namespace tf_hvd
