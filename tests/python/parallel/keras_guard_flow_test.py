"""The reductions that the guard counts: those downstream of the gradients."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_hvd
import tf_hvd.keras as hvd
from tf_hvd.keras import GuardError
from tf_hvd.keras.sync_batch_norm import synchronized

pytestmark = [pytest.mark.framework, pytest.mark.jobs(2), pytest.mark.ranks(2)]

NOT_REDUCED = r"SGD would apply gradients that were not reduced"
LIBRARIES = pytest.mark.parametrize("library", [keras, tf_keras])


def data():
    return (np.arange(12.0).reshape(4, 3) / 10 + hvd.rank()).astype("float32"), np.ones([4, 1])


def fit(model, **options):
    options = {"batch_size": 1, "shuffle": False, "verbose": 0, **options}
    return model.fit(*data(), **options)


def make_model(library, *layers, optimizer=None, base=None):
    inputs = library.Input([3])
    outputs = inputs
    for layer in (*layers, library.layers.Dense(1)):
        outputs = layer(outputs)
    model = (base or library.Model)(inputs, outputs)
    hvd.broadcast_variables(model.variables, 0)
    model.compile(optimizer or library.optimizers.SGD(0.1), "mse")
    return model


def test_data_without_batches_is_reported():
    """Regression: Keras counts the update without data, so the guard blamed the optimizer."""
    model = make_model(keras, optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam()))
    few = tf.data.Dataset.from_tensor_slices((np.ones([1, 3]), np.ones([1, 1])))
    with pytest.raises(GuardError, match=f"rank {hvd.rank()} got no batches"):
        model.fit(tf_hvd.shard(few, uneven="drop").batch(2), verbose=0)


@LIBRARIES
def test_plain_optimizer_next_to_sync_batch_normalization(library):
    layer = synchronized(library.layers.BatchNormalization)()
    model = make_model(library, layer)
    with pytest.raises(GuardError, match=NOT_REDUCED):
        fit(model)
    hvd.check_weights(model)
    model.compile(hvd.DistributedOptimizer(library.optimizers.SGD(0.1)), "mse")
    fit(model)


@tf.function(autograph=False)
def summed(x):
    """A forward pass in a separate function, with a collective in it."""
    return tf_hvd.allreduce(x) * 2.0


@tf.custom_gradient
def doubled(x):
    return x * 2.0, lambda dy: dy * 2.0


FORWARD = {
    "allreduce": lambda x: tf_hvd.allreduce(x),
    "allgather": lambda x: tf.reduce_sum(tf_hvd.allgather(x), 0, keepdims=True) + x,
    "function": summed,
    "cond": lambda x: tf.cond(tf.reduce_sum(x) > -1e9, lambda: tf_hvd.allreduce(x), lambda: x),
    "recompute": lambda x: tf.recompute_grad(lambda y: tf_hvd.allreduce(y))(x),
    "custom gradient": lambda x: doubled(tf_hvd.allreduce(x)),
}


def train_step_of(model, optimizer, forward=None, after=None, scale_loss=None):
    """A custom step: a collective in the forward pass, and some code after it."""
    optimizer.build(model.trainable_variables)

    def step(x):
        with tf.GradientTape() as tape:
            y = model(x)
            loss = tf.reduce_mean((forward or tf.identity)(y) ** 2)
            if scale_loss:
                loss = scale_loss(loss)
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients = gradients if after is None else after(gradients)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    function = tf.function(step, autograph=False)
    return lambda: function(tf.constant(data()[0]))


def is_stopped(train):
    """The first step may be the one that creates the optimizer's variables; the second may not."""
    train()
    with pytest.raises(tf.errors.InvalidArgumentError, match=NOT_REDUCED):
        train()


@pytest.mark.parametrize("forward", list(FORWARD))
def test_reduction_in_the_forward_pass_does_not_count(forward):
    model, optimizer = make_model(keras), keras.optimizers.SGD(0.1)
    is_stopped(train_step_of(model, optimizer, FORWARD[forward]))


def test_plain_optimizer_after_allreduce_of_the_loss_is_stopped():
    model = make_model(keras)
    scale = {"scale_loss": lambda loss: tf_hvd.allreduce(loss * 8.0) / 8.0}
    is_stopped(train_step_of(model, keras.optimizers.SGD(0.1), **scale))

    def metric_too(gradients):
        norm = tf_hvd.allreduce(tf.constant(1.0), name="a_metric_of_nothing")
        return [g + 0.0 * norm for g in gradients]

    is_stopped(train_step_of(model, keras.optimizers.SGD(0.1), after=metric_too, **scale))


@tf.function(autograph=False)
def reduce_in_a_function(gradients):
    return tf_hvd.grouped_allreduce(gradients)


def through_variables():
    """Sums of passes in variables, as in a program with its own accumulation."""
    sums = []

    def reduce(gradients):
        if not sums:
            sums[:] = [tf.Variable(tf.zeros(g.shape)) for g in gradients]
        for total, gradient in zip(sums, gradients, strict=True):
            total.assign_add(gradient)
        return [tf_hvd.allreduce(total.read_value() / 2.0) for total in sums]

    return reduce


def in_a_loop(gradients):
    def body(i, values):
        return i + 1, [tf_hvd.allreduce(value) for value in values]

    return tf.while_loop(lambda i, _: i < 1, body, (0, gradients))[1]


def in_python(gradients):
    def reduce(gradient):
        return tf_hvd.allreduce(gradient, name="in_python")

    reduced = []
    for gradient in gradients:
        with tf.control_dependencies(reduced):  # sequential, because they have the same name
            value = tf.py_function(reduce, [gradient], gradient.dtype)
        value.set_shape(gradient.shape)
        reduced.append(value)
    return reduced


def clipped(gradients):
    return tf.clip_by_global_norm([tf_hvd.allreduce(g * 2.0) / 2.0 for g in gradients], 1.0)[0]


REDUCE = {
    "each": lambda gradients: [tf_hvd.allreduce(g) for g in gradients],
    "grouped": lambda gradients: tf_hvd.grouped_allreduce(gradients),
    "clipped": clipped,
    "function": reduce_in_a_function,
    "cond": lambda gradients: tf.cond(
        tf.constant(True), lambda: tf_hvd.grouped_allreduce(gradients), lambda: gradients
    ),
    "loop": in_a_loop,
    "python": in_python,
    "variables": through_variables(),
    "gathered": lambda gradients: [
        tf.reduce_mean(tf_hvd.allgather(g[tf.newaxis]), 0) for g in gradients
    ],
    "scope": lambda gradients: reduce_in_scope(gradients),
}


def reduce_in_scope(gradients):
    with tf.name_scope("gradients"):
        return [tf_hvd.allreduce(g) for g in gradients]


@pytest.mark.parametrize("how", list(REDUCE))
def test_gradients_reduced_by_the_program_pass(how):
    """Also next to a collective in the forward pass."""
    model = make_model(keras)
    train = train_step_of(model, keras.optimizers.SGD(0.1), FORWARD["allreduce"], REDUCE[how])
    train()
    train()
    hvd.check_weights(model)


def test_users_train_step_with_a_distributed_tape():
    class Own(keras.Model):
        def train_step(self, data):
            x, y = data
            with tf_hvd.DistributedGradientTape(tf.GradientTape()) as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    layer = synchronized(keras.layers.BatchNormalization)()
    model = make_model(keras, layer, base=Own)
    fit(model, epochs=2)
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)), "mse")
    fit(model)


@LIBRARIES
@pytest.mark.parametrize("member", [0, 1])
def test_tape_on_a_rank_outside_its_process_set(library, member):
    """All ranks may use the tape of a set; the guard ignores the ranks outside it."""
    process_set = tf_hvd.add_process_set([member])
    kind = keras.Variable if library is keras else tf.Variable
    variable, optimizer = kind([1.0]), library.optimizers.SGD(1.0)
    optimizer.build([variable])

    @tf.function(autograph=False)
    def step(x):
        with tf_hvd.DistributedGradientTape(tf.GradientTape(), process_set=process_set) as tape:
            loss = tf.reduce_sum(x * variable)
        optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])

    for _ in range(2):
        step(tf.constant([hvd.rank() + 2.0]))
    np.testing.assert_array_equal(np.asarray(variable), [1 - 2 * (hvd.rank() + 2.0)])
    tf_hvd.remove_process_set(process_set)


def clipped_by_the_common_norm(gradients):
    norm = tf_hvd.allreduce(tf.linalg.global_norm(gradients))
    return [gradient / norm for gradient in gradients]


def kept_if_all_are_finite(gradients):
    flag = tf_hvd.allreduce(tf.constant(1.0) + 0.0 * tf.reduce_sum(gradients[0]), op=tf_hvd.Min)
    return [tf.where(flag > 0, gradient, 0.0) for gradient in gradients]


@pytest.mark.parametrize("after", [clipped_by_the_common_norm, kept_if_all_are_finite])
def test_reducing_one_number_does_not_count_as_reducing_gradients(after):
    model = make_model(keras)
    is_stopped(train_step_of(model, keras.optimizers.SGD(0.1), after=after))


def test_gradients_are_not_summed_twice():
    """The tape or the program, and then the optimizer, would sum: N times too large."""

    def summed_up(gradients):
        return [tf_hvd.allreduce(gradient, op=tf_hvd.Sum) for gradient in gradients]

    model = make_model(keras)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), op=tf_hvd.Sum)
    with pytest.raises(ValueError, match="would reduce these gradients a second time"):
        train_step_of(model, optimizer, after=summed_up)()
    model = make_model(keras)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), op=tf_hvd.Sum)
    train_step_of(model, optimizer, after=clipped_by_the_common_norm)()


def test_gradients_are_not_summed_twice_in_an_eager_loop():
    weight = tf.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=tf_hvd.Sum)

    def gradient(distributed):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * (1.0 + tf_hvd.rank()))
        if distributed:
            tape = tf_hvd.DistributedGradientTape(tape, op=tf_hvd.Sum)
        return tape.gradient(loss, weight)

    for changed, text in ((False, "would reduce these"), (True, "may reduce these")):
        given = gradient(distributed=True)
        with pytest.raises(ValueError, match=text):
            optimizer.apply_gradients([(given * 1.0 if changed else given, weight)])
    np.testing.assert_array_equal(weight, [0.0])
    optimizer.apply_gradients([(gradient(distributed=False), weight)])
    total = tf_hvd.size() * (tf_hvd.size() + 1) / 2
    np.testing.assert_array_equal(weight, [-total])
