// HorovodBarrier and HorovodJoin: ranks wait for each other; no tensor is sent.
// They are called for their effect, in the order of the program.
#include "ops/common.h"

namespace tf_hvd {
namespace {

[[maybe_unused]] const auto barrier =
    RegisterCollective("HorovodBarrier", [](OpBuilder* op) {
      AddAttributes(op, {kIgnoreNameScopeAttr, kProcessSetAttr});
      op->SetShapeFn(::tensorflow::shape_inference::NoOutputs)
          .Doc(WithNameDocs(R"doc(
Waits until all ranks of a process set have called it under the same name.

A tf.function orders it with joins and other barriers, but neither with
collectives that return tensors nor with reads and writes of variables. Use
control dependencies for those.

)doc"));
    });

[[maybe_unused]] const auto join =
    RegisterCollective("HorovodJoin", [](OpBuilder* op) {
      op->Attr(kProcessSetAttr)
          .Output("last_rank: int32")
          .SetShapeFn(::tensorflow::shape_inference::ScalarShape)
          .Doc(R"doc(
Signals that this rank has no more data, and waits until every rank has done so.

While it waits, this rank takes part in the other ranks' allreduces with zeros and
in their allgathers without rows. Their other collectives that move tensors fail.
Make this rank's own calls first: calls that it submits while it waits fail. In a
tf.function, ensure that with control dependencies.

last_rank: A scalar, equal on every rank: the rank of the job that joined last.
process_set_id: The process set; 0 is all ranks.
)doc");
    });

}  // namespace
}  // namespace tf_hvd
