"""Optimizers send their update number: ranks at different updates get an error."""

import pathlib
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_hvd as hvd
from tf_hvd.collectives import _calls, collectives
from tf_hvd.collectives.options import ReductionOptions
from tf_hvd.core import _native
from tf_hvd.keras import hooks

pytestmark = [pytest.mark.framework, pytest.mark.ranks(2)]

v1 = tf.compat.v1
OPTIMIZERS = {
    "keras": lambda: keras.optimizers.SGD(1.0),
    "tf_keras": lambda: tf_keras.optimizers.SGD(1.0),
    "legacy": lambda: tf_keras.optimizers.legacy.SGD(1.0),
}


class InterruptedStepError(Exception):
    """Raised by a program's own check in the middle of a step."""


@pytest.mark.parametrize("sparse", [None, "auto", "rows", "dense"])
@pytest.mark.parametrize("mode", ["eager", "function"])
def test_a_step_is_compared_in_every_kind_of_request(rank, mode, sparse):
    value = tf.constant([[1.0, 2.0]] * 700)
    if sparse is not None:
        value = tf.IndexedSlices(value, tf.range(700), tf.constant([2000, 2], tf.int64))
    options = ReductionOptions(op=hvd.Sum, sparse=sparse)

    def call(step):
        return tf.convert_to_tensor(
            collectives.reduce_group([value], options, name="stamped", step=step)[0]
        )

    if mode == "function":
        call = tf.function(call, autograph=False)
    for step in (0, 5, -1):
        result = call(tf.constant(step, tf.int64))
        assert float(tf.reduce_sum(result)) == 2100.0 * hvd.size()
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"is at step 6.*is at step 7"):
        call(tf.constant(6 if rank == 0 else 7, tf.int64))
    assert float(tf.reduce_sum(call(tf.constant(8, tf.int64)))) == 2100.0 * hvd.size()


def test_gradients_pass_through_and_the_step_has_none(size):
    x = tf.constant([1.0, 2.0])
    options = ReductionOptions(op=hvd.Sum)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        step = tf.constant(3, tf.int64)
        reduced = _calls.run_reduction("Allreduce", [x], options, "reduced", step=step)[0]
        gathered = _calls.run_allgather([x], "gathered", step=step)[0]
    np.testing.assert_array_equal(tape.gradient(reduced, x), [size, size])
    np.testing.assert_array_equal(tape.gradient(gathered, x), [size, size])


@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("kind", list(OPTIMIZERS))
def test_a_failed_step_retried_on_one_rank(rank, kind, in_function):
    """Its gradients of step 1 were combined with the others' of step 2, unnoticed."""
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS[kind]())
    variable = tf.Variable([1.0])
    fails = tf.Variable(False)

    # The update depends on the reduced gradients: after the reduction, before it is applied.
    clip = "_transform_gradients" if kind == "legacy" else "_clip_gradients"
    inner = getattr(optimizer, clip)

    def interrupted(gradients):
        reduced = inner(gradients)
        check = tf.debugging.Assert(tf.logical_not(fails), ["the program's own check"])
        with tf.control_dependencies([] if check is None else [check]):
            return [
                (tf.identity(each[0]), each[1]) if isinstance(each, tuple) else tf.identity(each)
                for each in reduced
            ]

    object.__setattr__(optimizer, clip, interrupted)

    def step():
        optimizer.apply_gradients([(tf.ones([1]), variable)])

    if in_function:
        step = tf.function(step, autograph=False)
    step()
    if rank == 1:
        fails.assign(True)
        with pytest.raises(tf.errors.InvalidArgumentError, match="own check"):
            step()
        fails.assign(False)
    else:
        step()
    # Both ranks get an error with the numbers of both.
    with pytest.raises(tf.errors.FailedPreconditionError) as error:
        step()
    assert "rank 0 is at step 2, rank 1 is at step 1" in str(error.value)


@pytest.mark.parametrize("kind", list(OPTIMIZERS))
def test_a_loaded_state_is_broadcast_after_the_first_update(rank, kind):
    """As in many scripts: the first update creates the optimizer's variables."""
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS[kind]())
    variable = tf.Variable([1.0])
    optimizer.iterations.assign(1000 if rank == 0 else 0)
    for step in range(3):
        optimizer.apply_gradients([(tf.ones([1]), variable)])
        if step == 0:
            hvd.broadcast_variables([variable, optimizer.iterations], root_rank=0)
    assert int(optimizer.iterations) == 1003


def test_keras_steps_without_updates(rank):
    """Loss scales that skip on all ranks, accumulation, several passes, two alternating lists."""
    variable, other = tf.Variable([1.0]), tf.Variable([1.0])
    made = [
        hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0))),
        hvd.DistributedOptimizer(keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)),
        hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2),
    ]
    for optimizer in made:
        optimizer.build([variable, other])
        for number in range(6):
            bad = number == 2 and rank == 1 and optimizer is made[0]
            gradient = tf.fill([1], np.float32("inf") if bad else np.float32(1))
            for each in (variable, other):
                optimizer.apply([gradient], [each])


@pytest.mark.parametrize("initialised", [True, False])
@pytest.mark.parametrize("passes", [1, 2])
def test_a_failed_step_in_a_v1_session(rank, passes, initialised):
    """A step that failed on rank 1 after its collectives, and is repeated there."""
    with tf.Graph().as_default(), v1.Session() as session:
        variable = v1.get_variable("w", initializer=tf.zeros([1]), use_resource=True)
        fails = v1.placeholder_with_default(False, [])
        inner = v1.train.GradientDescentOptimizer(1.0)
        optimizer = hvd.DistributedOptimizer(inner, backward_passes_per_step=passes)
        pairs = optimizer.compute_gradients(variable * 1.0, var_list=[variable])
        check = tf.debugging.Assert(tf.logical_not(fails), ["the program's own check"])
        with tf.control_dependencies([pairs[0][0]]), tf.control_dependencies([check]):
            pairs = [(tf.identity(gradient), v) for gradient, v in pairs]
        train = optimizer.apply_gradients(pairs, name="train")
        assert train.name == "train" or passes > 1
        session.run(v1.global_variables_initializer())
        if initialised or passes > 1:
            session.run(v1.local_variables_initializer())
        for _ in range(2 * passes):
            session.run(train)
        if passes > 1 or not initialised:
            return  # without local variables no step is known, so nothing is compared
        if rank == 1:
            with pytest.raises(tf.errors.InvalidArgumentError, match="own check"):
                session.run(train, {fails: True})
        else:
            session.run(train)
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"at step 3.*at step 2;"):
            session.run(train)


def test_a_failed_step_in_eager_v1(rank):
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0))
    variable = tf.Variable([0.0])

    def step(fails):
        pairs = optimizer.compute_gradients(lambda: variable * 1.0, var_list=[variable])
        if fails:
            raise InterruptedStepError
        optimizer.apply_gradients(pairs)

    step(False)
    if rank == 1:
        with pytest.raises(InterruptedStepError):
            step(True)
    else:
        step(False)
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"at step 2.*at step 1;"):
        step(False)


def test_a_rank_that_has_joined_is_not_compared(rank):
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    variable = tf.Variable([0.0])
    optimizer.build([variable])
    for _ in range(3):
        for _ in range(2 if rank == 1 else 5):
            optimizer.apply_gradients([(tf.ones([1]), variable)])
        hvd.join()


def test_optimizers_with_one_name_continue_after_a_join(rank):
    """As in a GAN. The steps of one were counted from those of the other."""
    models = [
        (hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)), tf.Variable(tf.zeros([n]), name=name))
        for n, name in enumerate(["discriminator", "generator"], start=1)
    ]

    def update(number):
        optimizer, variable = models[number]
        optimizer.apply_gradients([(tf.ones_like(variable), variable)])

    for optimizer, variable in models:
        optimizer.build([variable])
    for rounds in (4 if rank == 1 else 10, 3):
        for _ in range(rounds):
            for _ in range(5):
                update(0)
            update(1)
        hvd.join()


def test_a_step_retried_after_a_join_is_noticed(rank):
    """Ranks that have joined have made fewer updates, so counts restart after a join."""
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    variable = tf.Variable([0.0])
    optimizer.build([variable])

    def update():
        optimizer.apply_gradients([(tf.ones([1]), variable)])

    for _ in range(2 if rank == 1 else 5):
        update()
    hvd.join()
    update()
    if rank != 1:
        # Simulates one more applied update than the others.
        hooks.noted(optimizer)._counts.applied.add()
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"is at step"):
        update()


@pytest.mark.jobs(2)
def test_calls_left_over_from_a_step_that_failed_on_all_ranks(rank, tmp_path):
    """Rank 0 has made a call that rank 1 has not: it is matched with rank 1's next call."""
    folder = hvd.broadcast_object(str(tmp_path), 0)

    def note(what):
        pathlib.Path(folder, what).touch()

    def once(happened, value):
        def wait(value):
            while not happened():
                time.sleep(0.01)
            return value

        return tf.numpy_function(wait, [value], value.dtype, stateful=False)

    def noted(what):
        return pathlib.Path(folder, what).exists()

    sent = _native.library.tf_hvd_submitted_count
    before = sent()

    @tf.function(autograph=False)
    def step(value):
        # Rank 1 fails while its first call waits for rank 0's, which continues to its second.
        begins = (lambda: True) if rank == 1 else (lambda: noted("rank 1 failed"))
        here = tf.ensure_shape(once(begins, value), [])
        first = hvd.allreduce(here, name="first", op=hvd.Sum)
        hvd.allreduce(first, name="second", op=hvd.Sum)
        fails = (lambda: sent() > before) if rank == 1 else (lambda: noted("done"))
        with tf.control_dependencies([once(fails, value)]):
            tf.debugging.Assert(value < 0, ["the loss is not finite"])

    with pytest.raises(tf.errors.InvalidArgumentError, match="not finite"):
        step(tf.constant(1.0))
    if rank == 1:
        note("rank 1 failed")
        assert hvd.allreduce(tf.constant(10.0), name="second", op=hvd.Sum) == 12.0
        note("done")
    assert hvd.allreduce(tf.constant(10.0), name="second", op=hvd.Sum) == 20.0
