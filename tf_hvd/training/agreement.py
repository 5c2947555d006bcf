"""Whether all ranks mean the same: their weights, and which gradients there are.

Each question is one small collective. The requests have names without the graph's
scopes: where the ranks' programs differ, so would those. Those of one optimizer are
asked in a tf.cond, which TensorFlow runs one after the other: no name is there twice.
"""

import functools
import hashlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.collectives import collectives, reduce_ops
from tf_hvd.core import _native
from tf_hvd.core.process_sets import ProcessSet
from tf_hvd.core.tensorflow_hooks import in_xla, on_host, tf_variable


def takes_part(process_set: ProcessSet) -> bool:
    """Whether this rank has others in `process_set` to agree with."""
    size = process_set.size()
    return bool(size is not None and size > 1 and process_set.included())


def name_of(variable: Any) -> str:
    """A Keras 3 variable's path, which says the layer; otherwise the name."""
    return str(getattr(variable, "path", None) or getattr(variable, "name", "a variable"))


def fingerprints(variables: Sequence[Any]) -> Any:
    """64 bits for each variable that stand for the bits of its value; int64, shape [n]."""
    return _read(variables, True)[:-1]


def _read(variables: Sequence[Any], wanted: Any) -> Any:
    """The same, and a 0 behind them: what is computed with that comes after the reading.

    All are 0, and nothing is read, if they are not wanted.
    """
    values = [tf.convert_to_tensor(tf_variable(variable)) for variable in variables]
    if not values:
        return tf.zeros([1], tf.int64)
    return _native.ops.horovod_fingerprints(wanted, values)


def read_before(
    variables: Sequence[Any], dues: Sequence[Any]
) -> tuple[Any, Any] | tuple[None, None]:
    """In a step that XLA compiles, reads what is compared in a branch before that.

    XLA copies what goes into a branch, at each step: that would be all the weights. `dues` say of
    each comparison whether it is due.

    Returns:
      The fingerprints if one is due, else zeros; and what `stamped` takes. None elsewhere.
    """
    if not dues or not in_xla():
        return None, None
    bits = _read(variables, functools.reduce(tf.logical_or, dues))
    return bits[:-1], bits[-1]


def stamped(step: Any | None, read: Any | None) -> Any | None:
    """The stamp of a reduction's requests, by which they come after a reading of the weights.

    XLA knows no waiting but for values, and copies what may be overwritten before it is read.
    """
    if read is None:
        return step
    return read + (-1 if step is None else step)


# What the ranks compare is from 1 to this, so that the zeros with which a rank that has
# joined takes part are smaller than all of it.
_LARGEST = 2**62


def unequal(values: Any, process_set: ProcessSet, name: str, ignore_name_scope: bool = True) -> Any:
    """Where int64 values differ between the ranks that take part; the same on all of them.

    The largest and the smallest are found by one request: the smallest of x is that
    of which the complement is largest. Two bits of each value do not count.

    Returns:
      bool, in the shape of `values`.
    """
    positive = tf.bitwise.bitwise_and(values, tf.constant(_LARGEST - 1, tf.int64)) + 1
    both = tf.concat([positive, _LARGEST + 1 - positive], axis=0)
    with on_host():
        extremes = collectives.allreduce(
            both,
            op=reduce_ops.Max,
            name=name,
            process_set=process_set,
            ignore_name_scope=ignore_name_scope,
        )
    largest, complement = tf.split(extremes, 2)
    return tf.not_equal(largest, _LARGEST + 1 - complement)


def texts_differ(mine: str, process_set: ProcessSet, name: str) -> bool:
    """Whether the ranks have different texts, by 62 bits; called eagerly by all of them."""
    bits = int.from_bytes(hashlib.sha256(mine.encode()).digest()[:8], "big") >> 2
    return bool(unequal(tf.constant([bits], tf.int64), process_set, name).numpy().any())


def tell(
    wrong: Any, variables: Sequence[Any], before: str, after: str, *, fails: bool = True
) -> Any:
    """Names the variables that are wrong, if any is, between two texts.

    It fails with an InvalidArgumentError, or names the first in a warning.

    Returns:
      A bool scalar: whether none is wrong.
    """
    return _native.ops.horovod_verdict(
        wrong,
        names=[name_of(variable) for variable in variables],
        before=before,
        after=after,
        fails=fails,
    )


def assert_equal(
    variables: Sequence[Any], process_set: ProcessSet, name: str, bits: Any | None = None
) -> Any:
    """Raises InvalidArgumentError on all ranks if these have not the same bits on all.

    `bits`: the fingerprints, if they were taken before.
    """
    if not variables:
        return tf.constant(True)
    return tell(
        unequal(fingerprints(variables) if bits is None else bits, process_set, name),
        variables,
        "tf_hvd: the ranks' weights differ: ",
        f". {CAUSES}",
    )


def assert_present(
    present: Sequence[bool], variables: Sequence[Any], process_set: ProcessSet, name: str
) -> Any:
    """Raises InvalidArgumentError on all ranks if some have a gradient that others lack."""
    if not variables:
        return tf.constant(True)
    # The last one counts who takes part: a rank that has joined does with zeros.
    mine = tf.constant([*(not there for there in present), True], tf.int32)
    with on_host():
        sums = collectives.allreduce(
            mine, op=reduce_ops.Sum, name=name, process_set=process_set, ignore_name_scope=True
        )
    missing, ranks = sums[:-1], sums[-1]
    return tell(
        tf.logical_and(missing > 0, missing < ranks),
        variables,
        "tf_hvd: some ranks have no gradient (None), and others have one, for: ",
        ". All ranks must train the same variables in an update: let no branch depend on the rank, "
        "or call optimizer.register_local_var(variable) on all ranks.",
    )


CAUSES = (
    "Likely cause: the initial values were never broadcast (BroadcastGlobalVariablesCallback(0) or "
    "broadcast_variables(model.variables, 0)), gradients were not reduced (DistributedOptimizer), "
    "or a branch or callback that depends on the rank changed weights. "
    "For weights that are meant to differ, call optimizer.register_local_var(variable)."
)
"""What makes the ranks' weights differ, and what to do."""
