"""Check that all ranks have the same weights, and gradients for the same variables.

Each check is one small collective. The collective's name does not include the graph's name scopes,
because the scopes may differ between ranks. An optimizer's checks are in a tf.cond, and TensorFlow
runs them one after the other. Therefore no name is used twice at the same time.
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
    """Return whether `process_set` includes this rank and at least one other rank."""
    size = process_set.size()
    return bool(size is not None and size > 1 and process_set.included())


def name_of(variable: Any) -> str:
    """Return the name of a variable in errors; for Keras 3 its path, which includes the layer."""
    return str(getattr(variable, "path", None) or getattr(variable, "name", "a variable"))


def fingerprints(variables: Sequence[Any]) -> Any:
    """Return a 64-bit fingerprint of each variable's value: an int64 tensor of shape [n]."""
    return _read(variables, True)[:-1]


def _read(variables: Sequence[Any], wanted: Any) -> Any:
    """Return the variables' fingerprints, followed by a 0.

    An op that uses the 0 runs after the variables are read. If `wanted` is false, all fingerprints
    are 0 and no variable is read.
    """
    values = [tf.convert_to_tensor(tf_variable(variable)) for variable in variables]
    if not values:
        return tf.zeros([1], tf.int64)
    return _native.ops.horovod_fingerprints(wanted, values)


def read_before(
    variables: Sequence[Any], dues: Sequence[Any]
) -> tuple[Any, Any] | tuple[None, None]:
    """In a step that XLA compiles, compute fingerprints before the branch that compares them.

    XLA copies a branch's inputs in every step. If the branch read the weights, XLA would copy all
    of them.

    Args:
      variables: the variables to compare.
      dues: bool tensors, one for each comparison: whether it is due.

    Returns:
      The fingerprints, or zeros if no comparison is due; and the argument `read` of `stamped`.
      Without XLA, or without `dues`, both are None.
    """
    if not dues or not in_xla():
        return None, None
    bits = _read(variables, functools.reduce(tf.logical_or, dues))
    return bits[:-1], bits[-1]


def stamped(step: Any | None, read: Any | None) -> Any | None:
    """Return the step number for a reduction that must run after the weights are read.

    XLA orders ops only by the values that they use.

    Args:
      step: step number; None if it is not known.
      read: the second result of `read_before`; None if nothing was read.
    """
    if read is None:
        return step
    return read + (-1 if step is None else step)


# Compared values are from 1 to this number, so they are larger than the zeros of a rank that has
# joined.
_LARGEST = 2**62


def unequal(values: Any, process_set: ProcessSet, name: str, ignore_name_scope: bool = True) -> Any:
    """Compare int64 values between the ranks of a set; the result is the same on all of them.

    One collective finds both the largest and the smallest value, because the smallest value has the
    largest complement. Two bits of each value are ignored.

    Returns:
      A bool tensor of the shape of `values`, which is true where the ranks' values differ.
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
    """Return whether the ranks have different texts, according to a digest of 62 bits.

    All ranks must call this function, in eager mode.
    """
    bits = int.from_bytes(hashlib.sha256(mine.encode()).digest()[:8], "big") >> 2
    return bool(unequal(tf.constant([bits], tf.int64), process_set, name).numpy().any())


def tell(
    wrong: Any, variables: Sequence[Any], before: str, after: str, *, fails: bool = True
) -> Any:
    """Raise InvalidArgumentError, or log a warning, if any variable is wrong.

    Args:
      wrong: bool tensor with one element for each variable.
      variables: the variables.
      before: text before the names of wrong variables.
      after: text after the names.
      fails: True (default) to raise, False to log a warning that names the first wrong variable.

    Returns:
      A bool scalar, which is true if no variable is wrong.
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
    """Raise InvalidArgumentError on all ranks unless the variables are bitwise the same.

    `bits` are the variables' fingerprints; None to compute them here.
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
    """Raise InvalidArgumentError on all ranks if only some have a gradient of a variable."""
    if not variables:
        return tf.constant(True)
    # The last element counts the participating ranks: a rank that has joined adds zeros.
    mine = tf.constant([*(not there for there in present), True], tf.int32)
    with on_host():
        sums = collectives.allreduce(
            mine, op=reduce_ops.Sum, name=name, process_set=process_set, ignore_name_scope=True
        )
    missing, ranks = sums[:-1], sums[-1]
    return tell(
        tf.logical_and(missing > 0, missing < ranks),
        variables,
        "tf_hvd: some ranks have a gradient, and others do not (None), for: ",
        ". All ranks must train the same variables in an update. Remove branches that depend on "
        "the rank, or call optimizer.register_local_var(variable) on all ranks.",
    )


CAUSES = (
    "Likely cause: the initial values were never broadcast (BroadcastGlobalVariablesCallback(0) or "
    "broadcast_variables(model.variables, 0)), gradients were not reduced (DistributedOptimizer), "
    "or a branch or callback that depends on the rank changed weights. "
    "For weights that are meant to differ, call optimizer.register_local_var(variable)."
)
"""Text with likely causes of weights that differ between ranks, and with fixes."""
