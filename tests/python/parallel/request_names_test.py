"""tf_hvd's internal requests: their names are words, and their errors include a fix."""

import os
import re
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_hvd as hvd
import tf_hvd.keras
from tf_hvd.collectives.objects import Title
from tf_hvd.core import _native
from tf_hvd.keras import callbacks, fit_sync
from tf_hvd.observe import recording

pytestmark = [pytest.mark.framework, pytest.mark.ranks(2)]
FEATURES, ONES = np.ones([4, 3], "float32"), np.ones([4, 1], "float32")


def model_of(flavour, optimizer):
    ones = flavour.initializers.Ones()
    dense = flavour.layers.Dense(1, kernel_initializer=ones)
    model = flavour.Sequential([flavour.Input([3]), dense])
    model.compile(optimizer, "mse")
    return model


def distributed(flavour, process_set=hvd.global_process_set):
    optimizer = flavour.optimizers.SGD(0.1)
    return tf_hvd.DistributedOptimizer(optimizer, process_set=process_set)


def fit(model, **options):
    model.fit(FEATURES, ONES, batch_size=2, verbose=0, **options)


def names_since(number):
    for process, file in recording.running():
        if process == os.getpid():
            one = recording.parse(file.read_bytes())
            if one.process == process and one.state == recording.JOINED:
                return [call.name for call in one.calls if call.number > number], one.last.number
    raise AssertionError("no recorder")


def test_no_request_has_an_internal_name(folder):
    _, before = names_since(0)
    hvd.shard(tf.data.Dataset.range(8))
    options = {"callbacks": [callbacks.MetricAverageCallback(), callbacks.BackupAndRestore(folder)]}
    fit(model_of(keras, distributed(keras)), **options)
    preemption = hvd.on_preemption()
    preemption.check()
    preemption.finish()
    tape_variable = tf.Variable([1.0])
    for _ in range(11):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_sum(tape_variable * 2.0)
        tape.gradient(loss, [tape_variable])
    names, _ = names_since(before)
    ours = {name for name in names if " " in name}
    for words in (
        "fit on all ranks",
        "comparison of weights",
        "shard:",
        "on_preemption:",
        "Backup",
    ):
        assert any(words in name for name in ours), (words, ours)
    assert "comparison_of_initial_weights" in names
    not_known = [name for name in ours if not recording.is_own(name)]
    assert not not_known, "doctor takes these for calls of the program"
    assert not [name for name in names if "tf_hvd_" in name]
    assert max(map(len, names)) < 104, "a recorder shortens it"


@pytest.mark.parametrize("flavour", [keras, tf_keras], ids=lambda flavour: flavour.__name__)
def test_a_plain_fit_on_rank_0_and_a_distributed_one(rank, flavour):
    """It was "epochs= must be the same on all ranks", or nothing at all."""
    model = model_of(flavour, flavour.optimizers.SGD() if rank == 0 else distributed(flavour))
    with pytest.raises(ValueError, match="a plain optimizer on rank 0, a distributed") as raised:
        fit(model, epochs=1 if rank == 0 else 3)
    assert "`with tf_hvd.unguarded():`" in str(raised.value)
    if rank == 0:
        with tf_hvd.unguarded():
            fit(model)
    assert int(hvd.allreduce(rank, op=hvd.Max)) == hvd.size() - 1


def test_two_fits_at_once_in_one_process(rank):
    """It was "duplicate name: 'tf_hvd_fit.sz' was submitted again"."""
    first = []

    def ask():
        first.extend(hvd.allgather_object(rank, name=fit_sync._FIT))

    if rank == 0:
        before = _native.library.tf_hvd_submitted_count()
        asking = threading.Thread(target=ask)  # in place of another fit
        asking.start()
        while _native.library.tf_hvd_submitted_count() == before:
            pass
    else:
        hvd.broadcast(0, 0, name="rank 0 got the error")
        ask()
    kind = tf.errors.InvalidArgumentError if rank == 0 else tf.errors.FailedPreconditionError
    with pytest.raises(kind, match="Run one fit at a time in each process") as raised:
        fit(model_of(keras, distributed(keras)))
    assert "process sets" in raised.value.message
    assert "`with tf_hvd.unguarded():`" in raised.value.message
    if rank == 0:
        hvd.broadcast(0, 0, name="rank 0 got the error")
        asking.join()
    assert first == list(range(hvd.size()))


def test_names_with_spaces_are_not_node_names(rank, size):
    """`hvd.shard` in a v1 graph: TensorFlow's names of nodes have no spaces."""
    with tf.Graph().as_default():
        everyone = hvd.allgather_object(rank, name=Title("shard: (in words)"))
        assert hvd.broadcast_object(rank, 1, name=Title("shard: (in words)")) == 1
        hvd.shard(tf.data.Dataset.range(4))
    assert everyone == list(range(size))


@pytest.mark.parametrize(
    "text",
    [
        "rank 1 (b) left: its program has ended; 'x', which has run before, was not called the "
        "same number of times on all ranks: if one rank skipped a call, every result since then "
        "combines calls that do not belong together",
        "rank 1 (b) left: its program has ended; 'x' still needed it",
    ],
)
@pytest.mark.parametrize("occasion", ["the beginning of fit", "the last step of an epoch"])
def test_fits_requests_are_not_reported_as_repeated_calls(text, occasion):
    """Every request of `fit` asks for the other ranks' state."""
    with pytest.raises(tf.errors.UnknownError) as raised, fit_sync._in_words(occasion):
        raise tf.errors.UnknownError(None, None, "{{function_node x}} " + text)
    told = raised.value.message
    assert re.search(r"rank 1 \(b\) left: its program has ended(\.|$)", told)
    assert ("unguarded" in told) == (occasion == "the beginning of fit")
