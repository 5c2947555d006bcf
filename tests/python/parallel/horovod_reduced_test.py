"""Under Horovod's names, an update does not reduce gradients that the program has reduced.

NVIDIA's WideAndDeep and SIM wrap both the tape and the optimizer. Their sums would be N times too
large; here each step's sum is 3, 1 from rank 0 and 2 from rank 1.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

pytestmark = [
    pytest.mark.framework,
    pytest.mark.jobs(2),
    pytest.mark.usefixtures("horovod"),
]
MADE = {
    "keras": lambda: keras.optimizers.SGD(1.0),
    "tf_keras": lambda: tf_keras.optimizers.SGD(1.0),
    "legacy": lambda: tf_keras.optimizers.legacy.SGD(1.0),
}


def once(step):
    return tf.function(step, autograph=False)


BOTH = pytest.mark.parametrize("run", [lambda step: step, once], ids=["eagerly", "in_function"])


def tape_step(hvd, optimizer, variables, after=list, local=(), unused=()):
    """A step that also wraps the tape: gradients 1 + rank, with Sum."""

    def step():
        with tf.GradientTape() as plain:
            loss = sum(tf.reduce_sum(variable) for variable in variables) * (1.0 + hvd.rank())
        tape = hvd.DistributedGradientTape(plain, op=hvd.Sum)
        for variable in local:
            tape.register_local_source(variable)
        sources = [*variables, *unused]
        grads = after(tape.gradient(loss, sources))
        optimizer.apply_gradients(zip(grads, sources, strict=True))

    return step


def is_distributed_once(hvd, made, run, **options):
    variables = [tf.Variable([0.0]), tf.Variable([[0.0]])]
    unused = tf.Variable([0.0])
    passes = options.get("backward_passes_per_step", 1)
    optimizer = hvd.DistributedOptimizer(made, op=hvd.Sum, **options)
    if hasattr(optimizer, "build"):
        optimizer.build([*variables, unused])
    step = run(tape_step(hvd, optimizer, variables, unused=[unused]))
    for number in (1, 2):
        for _ in range(passes):
            step()
        for variable in variables:
            np.testing.assert_array_equal(tf.squeeze(variable), -3.0 * passes * number)


@BOTH
@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("passes", [1, 2])
def test_gradients_that_a_tape_has_reduced_are_not_reduced_again(run, kind, passes):
    """NVIDIA's WideAndDeep and SIM wrap both; with Sum the update was N times too large."""
    import horovod.tensorflow as hvd

    is_distributed_once(hvd, MADE[kind](), run, backward_passes_per_step=passes)


def test_gradients_that_keras_accumulates_are_not_reduced_again():
    import horovod.tensorflow as hvd

    weight = tf.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(1.0, gradient_accumulation_steps=2), op=hvd.Sum
    )
    optimizer.build([weight])
    step = once(tape_step(hvd, optimizer, [weight]))
    for _ in range(4):
        step()
    np.testing.assert_array_equal(weight, [-6.0])  # Keras averages the passes


def test_averages_of_a_tape_are_not_sent_again():
    import horovod.tensorflow as hvd

    weight = tf.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    optimizer.build([weight])
    graph = once(tape_step(hvd, optimizer, [weight])).get_concrete_function().graph
    functions = graph.as_graph_def().library.function
    nodes = [node.op for each in functions for node in each.node_def]
    nodes += [op.type for op in graph.get_operations()]
    assert nodes.count("HorovodGroupedAllreduce") == 1


def clipped(gradients):
    return tf.clip_by_global_norm(gradients, 1e6)[0]


def test_gradients_of_a_tape_may_be_clipped_before_the_update():
    """A function shows how they were changed. Eager mode does not, so a sum is refused."""
    import horovod.tensorflow as hvd

    weight = tf.Variable([0.0])
    summing = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum)
    once(tape_step(hvd, summing, [weight], clipped))()
    np.testing.assert_array_equal(weight, [-3.0])
    with pytest.raises(ValueError, match="Run the step in a"):
        tape_step(hvd, summing, [weight], clipped)()
    averaging = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    tape_step(hvd, averaging, [weight], clipped)()  # the average of equal numbers
    np.testing.assert_array_equal(weight, [-6.0])
    # The next update is a normal one.
    summing.apply_gradients([(tf.constant([1.0 + hvd.rank()]), weight)])
    np.testing.assert_array_equal(weight, [-9.0])


@BOTH
def test_local_and_reduced_gradients_of_a_tape(run):
    import horovod.tensorflow as hvd

    own, both = tf.Variable([0.0]), tf.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum)
    optimizer.build([own, both])
    run(tape_step(hvd, optimizer, [own, both], local=[own]))()
    np.testing.assert_array_equal(own, [-(1.0 + hvd.rank()) / 2])
    np.testing.assert_array_equal(both, [-3.0])


def summed_once(run, change):
    """A weight of 0 after an update by a wrapped optimizer with the gradient that `change` makes.

    Args:
      run: see BOTH.
      change: is called with the optimizer, this rank's gradient and the weight.
    """
    import horovod.tensorflow as hvd

    weight = tf.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum)
    optimizer.build([weight])

    def step():
        with tf.GradientTape() as tape:
            loss = weight * (1.0 + hvd.rank())
        gradient = change(optimizer, tape.gradient(loss, weight), weight)
        optimizer.apply_gradients([(gradient, weight)])

    run(step)()
    return weight


@BOTH
def test_gradients_from_python_code_are_reduced(run):
    """The effect of Python code is unknown; it does not count as a collective."""

    def seen(_, gradient, weight):
        same = tf.numpy_function(lambda x: x * 1, [gradient], tf.float32)
        return tf.ensure_shape(same, weight.shape)

    np.testing.assert_array_equal(summed_once(run, seen), [-3.0])


def test_fit_of_a_train_step_with_a_tape_that_is_wrapped_as_well():
    import horovod.keras as hvd_keras
    import horovod.tensorflow as hvd

    class Model(keras.Sequential):
        def train_step(self, data):
            x, _ = data
            with tf.GradientTape() as plain:
                loss = tf.reduce_sum(self(x, training=True))
            tape = hvd.DistributedGradientTape(plain, op=hvd.Sum)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    model = Model(
        [keras.Input([1]), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
    )
    model.compile(hvd_keras.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum))
    x = np.full([4, 1], 1.0 + hvd.rank(), "float32")
    model.fit(x, x, batch_size=2, epochs=2, verbose=0)
    np.testing.assert_array_equal(model.get_weights()[0], [[-4 * 2 * 3.0]])


@BOTH
def test_apply_gradients_does_not_reduce_again_what_allreduce_grads_returned(run):
    def reduced(optimizer, gradient, weight):
        return optimizer._allreduce_grads([gradient], [weight])[0]

    np.testing.assert_array_equal(summed_once(run, reduced), [-3.0])


@pytest.mark.parametrize("kind", list(MADE))
@pytest.mark.parametrize("function", [True, False])
def test_updates_call_a_replaced_allreduce(kind, function):
    """distributed-embeddings registers its tables there; its function was never called."""
    import horovod.keras as hvd_keras
    import horovod.tensorflow.keras as hvd_tf_keras

    hvd = hvd_keras if kind == "keras" else hvd_tf_keras
    own, both = tf.Variable([0.0]), tf.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(MADE[kind]())
    if kind != "legacy":
        optimizer.build([own, both])
    original, calls = optimizer._allreduce, []

    def register_and_reduce(gradients, variables):
        calls.append(len(variables))
        optimizer.register_local_var(own)
        return original(gradients, variables)

    optimizer._allreduce = register_and_reduce

    def step():
        ours = tf.constant([1.0 + hvd.rank()])
        optimizer.apply_gradients([(ours, own), (ours, both)])

    (tf.function(step, autograph=False) if function else step)()
    assert set(calls) == {2}  # a function may be traced twice
    mean = (1 + hvd.size()) / 2
    np.testing.assert_array_equal(both.numpy(), [-mean])
    np.testing.assert_array_equal(own.numpy(), [-(1.0 + hvd.rank()) / hvd.size()])


def test_allreduce_grads_of_an_optimizer():
    import horovod.keras as hvd

    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    variable = tf.Variable([0.0])
    for arguments in ([], [True]):
        reduced = optimizer._allreduce_grads(
            [tf.constant([1.0 + hvd.rank()])], [variable], *arguments
        )
        np.testing.assert_array_equal(reduced[0], [(1 + hvd.size()) / 2])


def test_rows_that_a_tape_has_reduced_remain_rows():
    import horovod.tensorflow as hvd

    table = tf.Variable(tf.zeros([3, 1]))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum)
    optimizer.build([table])

    def step():
        with tf.GradientTape() as plain:
            loss = tf.reduce_sum(tf.gather(table, [hvd.rank(), 2])) * (1.0 + hvd.rank())
        tape = hvd.DistributedGradientTape(plain, op=hvd.Sum)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])

    for run in (lambda step: step, once):
        run(step)()
    np.testing.assert_array_equal(table, [[-2.0], [-4.0], [-6.0]])
