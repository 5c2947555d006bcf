// HorovodBarrier and HorovodJoin: ranks wait for each other; no tensor travels.
// They are called for their effect, in the order of the program.
#include "ops/common.h"

namespace tf_hvd {
namespace {

[[maybe_unused]] const auto barrier =
    RegisterCollective("HorovodBarrier", [](OpBuilder* op) {
      AddAttributes(op, {kIgnoreNameScopeAttr, kProcessSetAttr});
      op->SetShapeFn(::tensorflow::shape_inference::NoOutputs)
          .Doc(WithNameDocs(R"doc(
Done when all ranks of a process set have called it under the same name.

In a tf.function it is put in order with joins and other barriers, but neither
with collectives that return tensors nor with what reads or writes variables:
use control dependencies for those.

)doc"));
    });

[[maybe_unused]] const auto join =
    RegisterCollective("HorovodJoin", [](OpBuilder* op) {
      op->Attr(kProcessSetAttr)
          .Output("last_rank: int32")
          .SetShapeFn(::tensorflow::shape_inference::ScalarShape)
          .Doc(R"doc(
Says that this rank has no more data, and waits until all ranks have said so.

Until then it takes part in the other ranks' allreduces with zeros and in their
allgathers without rows; any other collective of theirs that moves tensors fails.
Its own calls must come before: what it submits while it waits fails. In a
tf.function use control dependencies to see to that.

last_rank: A scalar, the same on every rank: which rank of the job joined last.
process_set_id: 0 is all ranks.
)doc");
    });

}  // namespace
}  // namespace tf_hvd
