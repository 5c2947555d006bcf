"""Gradients of different variables are never reduced with each other."""

import gc
import sys
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_hvd as hvd
import tf_hvd.keras as hvd_keras
from tf_hvd.collectives import sources
from tf_hvd.training import agreement

pytestmark = [pytest.mark.framework, pytest.mark.jobs(2, 4)]
CROSSED = tf.errors.FailedPreconditionError


def compiled(step, how):
    if how == "eager":
        return step
    return tf.function(step, jit_compile=True if how == "jit" else None)


class TwoHeads:
    """A trunk and two heads of one shape, with names numbered by Keras."""

    def __init__(self, library, names=(None, None)):
        self.trunk = library.layers.Dense(3)
        self.heads = [library.layers.Dense(1, name=name) for name in names]
        hidden = self.trunk(library.Input([2]))
        for head in self.heads:
            head(hidden)
        self.layers = [self.trunk, *self.heads]
        self.variables = [v for layer in self.layers for v in layer.trainable_variables]

    def loss(self, task, x):
        return tf.reduce_mean((self.heads[task](self.trunk(x)) - (1.0 if task else -1.0)) ** 2)

    def gradients(self, task, x, sources):
        with tf.GradientTape() as tape:
            loss = self.loss(task, x)
        return hvd.DistributedGradientTape(tape).gradient(loss, sources)


def check_crossed(step, heads):
    """All ranks get one error that names a variable of each head; then they continue."""
    step(0)
    texts = []
    for turn in range(2):
        with pytest.raises(CROSSED) as failure:
            step((turn + hvd.rank()) % 2)
        texts.append("mismatch in" + str(failure.value).partition("mismatch in")[2].split(";")[0])
    step(1)
    assert all(texts == of_rank for of_rank in hvd.allgather_object(texts))
    paths = [agreement.name_of(head.trainable_variables[0]).split("/")[0] for head in heads]
    assert len(set(paths)) == 2
    for text in texts:
        assert all(f"'{path}/" in text for path in paths), text


@pytest.mark.parametrize(
    ("library", "how", "names"),
    [
        (keras, "eager", (None, None)),
        (keras, "function", (None, None)),
        (keras, "jit", (None, None)),
        (keras, "function", ("a", "b")),
        (tf_keras, "eager", (None, None)),
        (tf_keras, "function", (None, None)),
    ],
)
def test_two_heads_by_a_tape(library, how, names):
    model = TwoHeads(library, names)
    hvd.broadcast_variables(model.variables, root_rank=0)
    x = tf.ones((4, 2))
    steps = [
        compiled(lambda task=task: [g for g in model.gradients(task, x, model.variables)
                                    if g is not None], how)
        for task in range(2)
    ]  # fmt: skip
    check_crossed(lambda task: steps[task](), model.heads)


def test_a_filtered_list_of_sources():
    """Shapes, names without counts, and positions are equal."""
    model = TwoHeads(keras)
    hvd.broadcast_variables(model.variables, root_rank=0)
    sources = [model.trunk.trainable_variables + head.trainable_variables for head in model.heads]
    x = tf.ones((4, 2))

    @tf.function
    def step(task):
        return model.gradients(task, x, sources[task])

    check_crossed(step, model.heads)


@pytest.mark.parametrize("options", [{}, {"compression": hvd.PowerSGD(rank=1)}])
@pytest.mark.parametrize("broadcast", [True, False])
def test_heads_that_stay_on_their_rank_are_not_compared(options, broadcast):
    """Ranks may have different ones, and different numbers of them."""
    trunk = tf.Variable(tf.ones((6, 6)))
    heads = [tf.Variable(tf.ones((6, 6))) for _ in range(hvd.size())]
    if broadcast:
        hvd.broadcast_variables([trunk, *heads], root_rank=0)
    mine = heads[: hvd.rank() + 1]
    with hvd.DistributedGradientTape(tf.GradientTape(), **options) as tape:
        loss = tf.add_n([tf.reduce_sum(trunk * head) for head in mine])
    for head in mine:
        tape.register_local_source(head)
    *own, shared = tape.gradient(loss, [*mine, trunk])
    np.testing.assert_allclose(shared, np.full((6, 6), (hvd.size() + 1) / 2), rtol=1e-6)
    assert len(own) == hvd.rank() + 1


@pytest.mark.parametrize(
    ("library", "how"), [(keras, "function"), (keras, "jit"), (tf_keras, "function")]
)
def test_an_optimizer_with_equal_first_steps(library, how):
    model = TwoHeads(library)
    hvd.broadcast_variables(model.variables, root_rank=0)
    optimizer = hvd_keras.DistributedOptimizer(library.optimizers.SGD(0.1))
    optimizer.build(model.variables)
    x = tf.ones((4, 2))

    def step(task):
        with tf.GradientTape() as tape:
            loss = model.loss(task, x)
        pairs = zip(tape.gradient(loss, model.variables), model.variables, strict=True)
        optimizer.apply_gradients([(g, v) for g, v in pairs if g is not None])

    steps = [compiled(lambda task=task: step(task), how) for task in range(2)]
    check_crossed(lambda task: steps[task](), model.heads)


def test_two_threads_that_train_in_different_orders():
    """Nothing overlaps: the second thread begins after the first has ended."""
    models = [keras.Sequential([keras.Input([3]), keras.layers.Dense(2)]) for _ in range(2)]
    for model in models:
        hvd.broadcast_variables(model.variables, root_rank=0)
    x = tf.ones((4, 3))
    errors = []

    def train(model):
        @tf.function
        def step():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(x))
            return hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)

        try:
            step()
        except CROSSED as error:
            errors.append(str(error))

    for model in models if hvd.rank() == 0 else models[::-1]:
        thread = threading.Thread(target=train, args=(model,))
        thread.start()
        thread.join()
    assert len(errors) == 2
    paths = [model.layers[0].bias.path for model in models]
    assert all(path in error for error in errors for path in paths)


@pytest.mark.parametrize("resources", [True, False])
def test_a_v1_graph_per_rank_for_separate_tasks(resources):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        trunk = tf.compat.v1.get_variable("trunk", [2, 3], use_resource=resources)
        heads = [
            tf.compat.v1.get_variable(f"head_{k}/kernel", [3, 1], use_resource=resources)
            for k in range(2)
        ]
        optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1))
        head = heads[hvd.rank() % 2]
        loss = tf.reduce_sum(tf.ones((4, 2)) @ trunk @ head)
        pairs = optimizer.compute_gradients(loss, [trunk, head])
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(tf.compat.v1.local_variables_initializer())
        session.run(hvd.broadcast_global_variables(0))
        with pytest.raises(CROSSED, match=r"'head_0/kernel'.*'head_1/kernel'"):
            session.run([gradient for gradient, _ in pairs])


def test_a_broadcast_within_the_step_comes_between_its_readings():
    """Horovod's example: the function of the first batch broadcasts after its update."""
    model = TwoHeads(keras)

    @tf.function
    def step(first):
        gradients = model.gradients(0, tf.ones((4, 2)), model.variables)
        for gradient, variable in zip(gradients, model.variables, strict=True):
            if gradient is not None:
                variable.assign_sub(0.1 * gradient)
        if first:
            hvd.broadcast_variables(model.variables, root_rank=0)

    for number in range(4):
        step(number == 0)
    for ranks in zip(*hvd.allgather_object([v.numpy() for v in model.variables]), strict=True):
        assert all(np.array_equal(ranks[0], value) for value in ranks)


def test_rows_and_then_columns_of_a_grid_are_one_broadcast():
    if hvd.size() != 4:
        pytest.skip("a grid of 2 x 2 ranks")
    variable = tf.Variable(tf.ones((3,)) * hvd.rank())
    for pairs in (((0, 1), (2, 3)), ((0, 2), (1, 3))):
        sets = [hvd.add_process_set(list(pair)) for pair in pairs]
        mine = next(each for each in sets if each.included())
        hvd.broadcast_variables([variable], root_rank=mine.ranks[0], process_set=mine)
        for each in sets:
            hvd.remove_process_set(each)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable)
    gradient = hvd.DistributedGradientTape(tape, op=hvd.Sum).gradient(loss, variable)
    assert gradient.numpy().tolist() == [4.0] * 3


def test_ranks_with_different_earlier_variables_agree():
    """Numbers and counted names differ between the ranks, but not their meaning."""
    kept = [keras.layers.Dense(1) for _ in range(hvd.rank())]
    model = TwoHeads(keras)
    hvd.broadcast_variables(model.variables, root_rank=0)
    gradients = model.gradients(0, tf.ones((4, 2)), model.variables)
    assert len(gradients) == 6
    assert len(kept) == hvd.rank()
    assert hvd.allgather_object([g is None for g in gradients])[0] == [g is None for g in gradients]


def test_a_variable_that_is_deleted_at_exit_is_silent(monkeypatch):
    """At its exit the interpreter sets names of modules to None before it deletes variables."""
    numbers = sources._Known.numbers
    variable = tf.Variable(1.0)
    hvd.broadcast_variables([variable], root_rank=0)
    key = id(variable)
    assert key in numbers
    errors = []
    monkeypatch.setattr(sys, "unraisablehook", errors.append)
    with monkeypatch.context() as at_exit:
        at_exit.setattr(sources, "_Known", None)
        del variable
        gc.collect()
    numbers.pop(key, None)
    assert not errors
