// HorovodAllgather and HorovodGroupedAllgather: concatenate the tensors of all
// ranks.
#include "ops/common.h"

namespace tf_hvd {
namespace {

void Describe(OpBuilder* op, Takes takes, const char* output) {
  AddAttributes(op, {kTypeAttr, kIgnoreNameScopeAttr, kProcessSetAttr}, takes);
  AddTensors(op, takes, output);
  op->SetShapeFn(AllOtherRows);
}

[[maybe_unused]] const auto allgather =
    RegisterCollective("HorovodAllgather", [](OpBuilder* op) {
      Describe(op, Takes::kTensor, "output");
      op->Doc(WithNameDocs(R"doc(
Concatenates the tensors of all ranks of a process set along dimension 0.

All ranks must call it under the same name with the same type and the same
dimensions but the first; if they do not, it fails on every rank with a
FailedPreconditionError. A scalar is an InvalidArgumentError.

tensor: At least one dimension. The first dimension may differ between ranks and
  may be 0.
output: The parts in the order of the set's ranks; the first dimension is the sum
  of those of the ranks' tensors.
)doc"));
    });

[[maybe_unused]] const auto grouped_allgather =
    RegisterCollective("HorovodGroupedAllgather", [](OpBuilder* op) {
      Describe(op, Takes::kGroupAndStep, "outputs");
      op->Doc(WithStepDocs(R"doc(
Concatenates tensors of one type across the ranks of a process set, as one request.

The members must satisfy the rules of HorovodAllgather, and ranks must agree on
the number of members. The first dimensions of all members are exchanged together.

tensors: At least one dimension each. The first dimension may differ between
  ranks and members and may be 0.
outputs: For each member, the parts in the order of the set's ranks.
T: The type of all members.
)doc"));
    });

}  // namespace
}  // namespace tf_hvd
