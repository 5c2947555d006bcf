// HorovodFingerprints, HorovodVerdict: what the checks of weights consist of,
// besides an allreduce in between. Local, and possible in steps that XLA
// compiles, which have no ops for texts.
//
// The verdict is stateful: it is reached whether or not somebody uses it.
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
64 bits for each tensor that stand for the bits of its elements; shapes and
types do not count.

Nothing is communicated. Equal on all machines.

wanted: A scalar; if it is false, all are 0, and nothing is read.
values: Of any shape and type but string.
fingerprints: Of shape [number of tensors + 1]. The last is 0: what is computed
  with it comes after the reading, also in a step that XLA compiles, which needs
  no copy of what is overwritten later then.
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
Tells which things are wrong, if any is.

Nothing is communicated.

wrong: Of shape [number of names].
passed: A scalar: whether none is wrong.
names: What they are called.
before: The text that comes before the names of those that are wrong.
after: The text behind them.
fails: Whether the op fails, with an InvalidArgumentError. Otherwise it names
  the first in a warning, on standard error.
)doc");

}  // namespace tf_hvd
