// HorovodFingerprints, HorovodVerdict: the parts of the checks of weights,
// apart from an allreduce between them. Local. They also work in steps that XLA
// compiles, which have no ops for strings.
//
// The verdict is stateful: it runs even if its result is unused.
#include "ops/common.h"

namespace tf_hvd {
namespace {

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ScalarShape;

absl::Status OneForEachInput(InferenceContext* c) {
  c->set_output(0, c->Vector(c->num_inputs()));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("HorovodFingerprints")
    .Attr("T: list(type) >= 1")
    .Input("wanted: bool")
    .Input("values: T")
    .Output("fingerprints: int64")
    .SetShapeFn(OneForEachInput)
    .Doc(R"doc(
Computes a 64-bit fingerprint of the bits of each tensor's elements. Shapes and
types do not affect it.

Nothing is communicated. Fingerprints are equal on all machines.

wanted: A scalar. If false, all fingerprints are 0 and no tensor is read.
values: Tensors of any shape and any type but string.
fingerprints: Shape [number of tensors + 1]. The last element is 0. Computation
  that uses it runs after the tensors were read, also in a step that XLA compiles.
  XLA then needs no copy of tensors that are overwritten later.
)doc");

REGISTER_OP("HorovodVerdict")
    .Attr("names: list(string)")
    .Attr("before: string")
    .Attr("after: string")
    .Attr("fails: bool")
    .Input("wrong: bool")
    .Output("passed: bool")
    .SetIsStateful()
    .SetShapeFn(ScalarShape)
    .Doc(R"doc(
Reports the names of wrong items, if any.

Nothing is communicated.

wrong: Shape [number of names].
passed: A scalar: whether no item is wrong.
names: Names of the items.
before: Text before the names of the wrong items.
after: Text after those names.
fails: Whether the op fails with an InvalidArgumentError. If false, it names the
  first wrong item in a warning on standard error.
)doc");

}  // namespace tf_hvd
