"""Ranks that started from different weights get one warning, where nothing else compares them."""

import gc
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_hvd as hvd
import tf_hvd.keras as hvd_keras
from tf_hvd.collectives.sources import _Known, list_of
from tf_hvd.keras import unguarded
from tf_hvd.keras.compat import variables_of
from tf_hvd.training.initial_weights import REDUCTION

pytestmark = [pytest.mark.framework, pytest.mark.jobs(2)]

v1 = tf.compat.v1
STEPS = REDUCTION + 3
TOLD = re.compile(
    rf"tf_hvd warning, rank 0 \(.*\): at reduction {REDUCTION} "
    r"the ranks' weights differ, first in (\S+)\. "
)


@pytest.fixture
def told(capfd, caplog):
    """The variables named since the previous call."""

    def read():
        text = capfd.readouterr().err + caplog.text
        caplog.clear()
        assert text.count("tf_hvd.unguarded()") == len(TOLD.findall(text))
        return TOLD.findall(text)

    return read


def tape_loop(mode, broadcast):
    weights = [tf.Variable([1.0, 2.0], name="kernel"), tf.Variable(1.0 + hvd.rank(), name="bias")]
    optimizer = keras.optimizers.SGD(0.1)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weights[0] * x) + weights[1] * 0.5
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, weights)
        optimizer.apply_gradients(zip(gradients, weights, strict=True))

    if mode != "eager":
        step = tf.function(step, jit_compile=mode == "compiled")
    for number in range(STEPS):
        # Other shapes are traced again, but counted together.
        step(tf.ones([1 + number % 2, 2]))
        if number == 0 and broadcast:
            hvd.broadcast_variables(weights + list(optimizer.variables), 0)


def optimizer_loop(library, mode, broadcast):
    initial = library.initializers.Constant(1.0 + hvd.rank())
    model = library.Sequential(
        [library.layers.Input((3,)), library.layers.Dense(1, bias_initializer=initial,
                                                          kernel_initializer="zeros")]
    )  # fmt: skip
    optimizer = hvd.DistributedOptimizer(library.optimizers.SGD(0.1))

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    if mode != "eager":
        step = tf.function(step, jit_compile=mode == "compiled")
    for number in range(STEPS):
        step(tf.ones([2, 3]))
        if number == 0 and broadcast:
            hvd.broadcast_variables(model.variables + variables_of(optimizer), 0)


def session(mode, hook):
    with tf.Graph().as_default():
        initial = tf.constant(1.0 + hvd.rank())
        kernel = v1.get_variable(
            "kernel", initializer=tf.ones([2]), use_resource=mode == "resource"
        )
        bias = v1.get_variable("bias", initializer=initial, use_resource=mode == "resource")
        loss = tf.reduce_sum(kernel) * bias
        optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(0.01))
        train = optimizer.minimize(loss)
        if mode == "resource":  # it also initialises local variables
            hooks = [hvd.BroadcastGlobalVariablesHook(0)] if hook else []
            with v1.train.MonitoredTrainingSession(hooks=hooks) as running:
                for _ in range(STEPS):
                    running.run(train)
            return
        broadcast = hvd.broadcast_global_variables(0)
        with v1.Session() as running:
            running.run(v1.global_variables_initializer())
            if hook:
                running.run(broadcast)
            for _ in range(STEPS):
                running.run(train)


LOOPS = {
    "tape, eager": lambda alike: tape_loop("eager", alike),
    "tape, function": lambda alike: tape_loop("function", alike),
    "keras, eager": lambda alike: optimizer_loop(keras, "eager", alike),
    "keras, function": lambda alike: optimizer_loop(keras, "function", alike),
    "tf_keras, function": lambda alike: optimizer_loop(tf_keras, "function", alike),
    "tape, compiled": lambda alike: tape_loop("compiled", alike),
    "keras, compiled": lambda alike: optimizer_loop(keras, "compiled", alike),
    "tf_keras, compiled": lambda alike: optimizer_loop(tf_keras, "compiled", alike),
    "session": lambda alike: session("resource", alike),
    "session, nothing local initialised": lambda alike: session("reference", alike),
}


def test_counts_of_deleted_variables_are_not_reused():
    """A rebuilt layer may reuse their ids on some ranks only, which then waited for the others."""
    backbone, counts = tf.Variable(1.0), _Known.lists
    kept = set(counts)

    def train():
        head = tf.Variable(2.0)
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = backbone * head
        tape.gradient(loss, [backbone, head])
        return counts.keys() - kept

    assert len(train()) == 1
    gc.collect()
    assert not counts.keys() - kept


COMPILED = [name for name in LOOPS if "compiled" in name]


@pytest.mark.parametrize(
    "loop",
    [
        *(name for name in LOOPS if name not in COMPILED),
        *(pytest.param(name, marks=pytest.mark.compiled) for name in COMPILED),
    ],
)
def test_ranks_that_started_differently_get_one_warning(loop, rank, told, capfd):
    LOOPS[loop](True)
    assert told() == []
    LOOPS[loop](False)
    names = told()
    assert len(names) == (1 if rank == 0 else 0)
    assert all("bias" in name or "dense" in name for name in names)
    with unguarded():
        LOOPS[loop](False)
    assert told() == []


def copied_weights(update):
    """The number of weights that a compiled step copies, according to XLA's program."""
    layers = [keras.Variable(tf.ones([64, 64])) for _ in range(4)]
    tape_of, apply = update(layers)

    @tf.function(autograph=False, jit_compile=True)
    def step(x):
        with tape_of(tf.GradientTape()) as tape:
            for layer in layers:
                x = tf.tanh(tf.matmul(x, layer))
            loss = tf.reduce_sum(x)
        apply(zip(tape.gradient(loss, layers), layers, strict=True))

    program = step.experimental_get_compiler_ir(tf.ones([8, 64]))(stage="optimized_hlo")
    return len(re.findall(r"= f32\[64,64\]\S* copy\(", program))


def by_tape(layers):
    del layers

    def apply(pairs):
        for gradient, layer in pairs:
            layer.assign_sub(0.1 * gradient)

    return hvd.DistributedGradientTape, apply


def by_optimizer(layers):
    optimizer = hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.1))
    optimizer.build(layers)
    return lambda tape: tape, optimizer.apply_gradients


@pytest.mark.compiled
@pytest.mark.parametrize("update", [by_tape, by_optimizer])
def test_the_one_comparison_does_not_copy_weights_at_each_step(update):
    """XLA copied all the weights for the branch in which the tenth step compares them."""
    watched = copied_weights(update)
    with unguarded():
        assert copied_weights(update) == watched


def test_two_lists_of_one_function(rank, told):
    """As in a GAN: each list has a separate count, and both are compared in one step."""
    both = [tf.Variable(1.0 * rank, name="one"), tf.Variable(2.0 * rank, name="two")]

    @tf.function
    def step():
        with tf.GradientTape(persistent=True) as tape:
            losses = [variable * 3.0 for variable in both]
        tape = hvd.DistributedGradientTape(tape)
        for loss, variable in zip(losses, both, strict=True):
            variable.assign_sub(0.1 * tape.gradient(loss, [variable])[0])

    for _ in range(STEPS):
        step()
    assert sorted(told()) == (["one:0", "two:0"] if rank == 0 else [])


def test_local_weights_are_not_compared(rank, told):
    shared, own = tf.Variable(1.0), tf.Variable(1.0 * rank)
    for _ in range(STEPS):
        with tf.GradientTape() as tape:
            loss = shared * 2.0 + own
        tape = hvd.DistributedGradientTape(tape)
        tape.register_local_source(own)
        tape.gradient(loss, [shared, own])
    assert told() == []


@pytest.mark.jobs(4)
def test_reductions_of_process_sets_do_not_count_for_all_ranks(rank, told):
    """Two ranks compared weights in the first step of all while two sent gradients: a stall."""
    pairs = [hvd.add_process_set([0, 1]), hvd.add_process_set([2, 3])]
    variable = tf.Variable(0.0, name="kernel")

    def train(steps, process_set):
        for _ in range(steps):
            with tf.GradientTape() as tape:
                loss = variable * 2.0
            hvd.DistributedGradientTape(tape, process_set=process_set).gradient(loss, variable)

    def counted():
        return sorted(list_of([variable]).kept)

    try:
        train(
            REDUCTION - 1 if rank < 2 else REDUCTION // 2,
            pairs[rank // 2],
        )
        variable.assign(rank)
        train(REDUCTION, hvd.global_process_set)
        assert told() == (["kernel:0"] if rank == 0 else [])
        assert counted() == [(0, 4), (pairs[rank // 2].process_set_id, 2)]
    finally:
        for each in pairs:
            hvd.remove_process_set(each)
    everyone = hvd.add_process_set([3, 2, 1])
    try:
        if everyone.included():
            train(1, everyone)
            assert counted() == [(0, 4), (everyone.process_set_id, 3)]  # no removed set
    finally:
        hvd.remove_process_set(everyone)


def test_counts_are_deleted_with_their_variables():
    before = len(_Known.lists), len(_Known.given), len(_Known.numbers)
    variable = tf.Variable(np.ones(3, np.float32))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable)
    hvd.DistributedGradientTape(tape).gradient(loss, [variable])
    assert len(_Known.lists) == before[0] + 1
    del variable, tape, loss
    assert (len(_Known.lists), len(_Known.given), len(_Known.numbers)) == before


@pytest.mark.parametrize("kind", ["tape", "optimizer"])
@pytest.mark.parametrize("jit", [None, False])
def test_after_a_join_the_ranks_count_together(rank, size, kind, jit):
    """Each had made a different number of updates: some compared weights, and the others waited."""
    variable = tf.Variable([1.0, 2.0])
    optimizer = keras.optimizers.SGD(0.1)
    if kind == "optimizer":
        optimizer = hvd_keras.DistributedOptimizer(optimizer)
    optimizer.build([variable])

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable**2)
        if kind == "tape":
            tape = hvd.DistributedGradientTape(tape)
        optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])

    step = step if jit is None else tf.function(step, autograph=False)
    for count in (6 + 2 * rank, 4, 12):
        for _ in range(count):
            step()
        hvd.join()
        hvd.broadcast_variables([variable, *optimizer.variables], root_rank=0)
    np.testing.assert_array_equal(hvd.allgather(variable[tf.newaxis]), [variable.numpy()] * size)
