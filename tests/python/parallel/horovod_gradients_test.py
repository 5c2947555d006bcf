"""Under Horovod's names the gradients are Horovod's, and all ranks must have the same.

Horovod's first derivatives of allgather and broadcast are averages across the ranks. That of
reducescatter is `size()` times the derivative. Its second derivatives are TensorFlow's of the
collectives in the first ones. The reference has all ranks' tensors in one process, so that each
rule is a line.
"""

import functools
import logging

import derivatives
import numpy as np
import pytest
import tensorflow as tf
from derivatives import ROWS, compare, exchanged, inputs, run_eagerly, scattered, uneven

import tf_hvd as hvd
from tf_hvd.collectives import gradients

pytestmark = pytest.mark.framework


@pytest.fixture
def as_horovod(monkeypatch):
    """The effect of importing horovod.tensorflow, for one test."""
    monkeypatch.setattr(gradients.Convention, "name", "tf_hvd")
    monkeypatch.setattr(gradients.Convention, "asked", False)
    gradients.use_horovods()
    assert gradients.convention() == "horovod"


def across(forward, backward):
    """All ranks' results from all ranks' tensors, with Horovod's gradient."""

    @tf.custom_gradient
    def function(*xs):
        def gradient(*gs):
            return backward(gs, xs)

        return forward(xs), gradient

    return function


def mean(gs):
    return across(
        lambda gs: [tf.add_n(gs) / len(gs)] * len(gs),
        lambda hs, _: mean(hs),
    )(*gs)


def gathered(xs):
    """allgather: the average, from which each rank takes its own rows."""
    counts = [int(x.shape[0]) for x in xs]
    return across(
        lambda xs: [tf.concat(xs, 0)] * len(xs),
        lambda gs, _: [tf.split(m, counts)[r] for r, m in enumerate(mean(gs))],
    )(*xs)


def broadcasted(xs, root):
    return across(
        lambda xs: [tf.identity(xs[root])] * len(xs),
        lambda gs, _: [m * float(r == root) for r, m in enumerate(mean(gs))],
    )(*xs)


def reduce_scattered(xs, op, pre, post):
    """reducescatter: the gathered gradients; times size() for Sum, and the factors."""
    size = len(xs)
    factor = pre * post * (size if op == hvd.Sum else 1)

    def forward(xs):
        total = tf.add_n(xs) * (pre * post / (size if op == hvd.Average else 1))
        return [scattered(total, r, size) for r in range(size)]

    return across(forward, lambda gs, _: gathered([g * factor for g in gs]))(*xs)


def test_allgather(as_horovod, evaluate):
    rows = derivatives.rows_for(evaluate)
    compare(evaluate, hvd.allgather, lambda xs, r: gathered(xs)[r], rows)


def test_grouped_allgather(as_horovod):
    compare(
        run_eagerly,
        lambda x: tf.concat(hvd.grouped_allgather([x, x[:1] * x[:1]]), 0),
        lambda xs, r: tf.concat([gathered(xs)[r], gathered([x[:1] * x[:1] for x in xs])[r]], 0),
        uneven,
    )


def test_broadcast(as_horovod, evaluate, size):
    root = size - 1
    compare(
        evaluate,
        lambda x: hvd.broadcast(x, root),
        lambda xs, r: broadcasted(xs, root)[r],
        inputs,
    )


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average], ids=["sum", "average"])
def test_reducescatter(as_horovod, evaluate, op):
    scales = {"op": op, "prescale_factor": 2.0, "postscale_factor": 0.25}
    compare(
        evaluate,
        lambda x: hvd.reducescatter(x, **scales),
        lambda xs, r: reduce_scattered(xs, op, 2.0, 0.25)[r],
        inputs,
    )


def test_grouped_reducescatter(as_horovod):
    def both(results):
        return tf.concat([tf.reshape(result, [-1]) for result in results], 0)

    compare(
        run_eagerly,
        lambda x: both(hvd.grouped_reducescatter([x, (x * x)[:3, :1]], op=hvd.Sum)),
        lambda xs, r: both(
            [
                reduce_scattered(xs, hvd.Sum, 1.0, 1.0)[r],
                reduce_scattered([(x * x)[:3, :1] for x in xs], hvd.Sum, 1.0, 1.0)[r],
            ]
        ),
        inputs,
    )


def test_allreduce_and_alltoall_have_one_gradient(as_horovod, rank, size):
    """Both conventions have the same gradients of these."""
    splits = [[(r + s) % 3 for s in range(size)] for r in range(size)]
    compare(
        run_eagerly,
        lambda x: hvd.alltoall(x, splits=splits[rank])[0],
        lambda xs, r: exchanged(xs, r, splits),
        lambda r: inputs(r, sum(splits[r])),
    )
    compare(run_eagerly, hvd.allreduce, lambda xs, r: mean(xs)[r], inputs)


@pytest.mark.ranks(3)
def test_in_a_process_set(as_horovod, rank, size):
    """The average is over the set."""
    some = hvd.add_process_set([0, size - 1])
    try:
        if some.included():
            x = tf.constant([[1.0]])
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(x)
                all_rows = hvd.allgather(x, process_set=some)
                row = hvd.reducescatter(tf.tile(x, [2, 1]), op=hvd.Sum, process_set=some)
            assert tape.gradient(all_rows, x).numpy() == 1.0
            assert tape.gradient(row, x).numpy() == 4.0  # two rows, a set of two
    finally:
        hvd.remove_process_set(some)


GRADIENTS = {
    "allgather": hvd.allgather,
    "grouped allgather": lambda x: hvd.grouped_allgather([x, x])[0],
    "broadcast": lambda x: hvd.broadcast(x, 0),
    "reducescatter": lambda x: hvd.reducescatter(x, op=hvd.Sum),
    "grouped reducescatter": lambda x: hvd.grouped_reducescatter([x, x], op=hvd.Sum)[0],
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", list(GRADIENTS))
def test_ranks_with_different_conventions_get_an_error(monkeypatch, rank, evaluate, name):
    """Also where the requests would otherwise be the same, like those of reducescatter."""
    monkeypatch.setattr(gradients.Convention, "name", "horovod" if rank == 0 else "tf_hvd")

    def gradient(x):
        if evaluate.__name__ == "run_in_session":
            return tf.gradients(GRADIENTS[name](x), x)[0]
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = GRADIENTS[name](x)
        return tape.gradient(y, x)

    with pytest.raises(tf.errors.FailedPreconditionError) as raised:
        evaluate(gradient, np.ones([ROWS, 2]))
    assert "horovod's rule" in str(raised.value)
    assert "tf_hvd's rule" in str(raised.value)


def test_the_first_gradient_logs_its_convention(monkeypatch, caplog, rank, size):
    monkeypatch.setattr(gradients.Convention, "asked", False)
    caplog.set_level(logging.WARNING, "absl")
    x = tf.constant([[1.0]])
    for collective in (functools.partial(hvd.broadcast, root_rank=0), hvd.allgather):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = collective(x)
        tape.gradient(y, x)
    told = [record.getMessage() for record in caplog.records if "--as-horovod" in record.msg]
    assert len(told) == (1 if rank == 0 and size > 1 else 0)
    assert all("The gradient of broadcast is" in text for text in told)


def test_horovod_cannot_come_after_the_first_gradient(monkeypatch):
    monkeypatch.setattr(gradients.Convention, "asked", True)
    with pytest.raises(ImportError, match="at the start of the program"):
        gradients.use_horovods()
    assert gradients.convention() == "tf_hvd"
