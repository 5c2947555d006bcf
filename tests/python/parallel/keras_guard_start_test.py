"""The updates that the guard allows at the start, and its comparison after each epoch."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_hvd
import tf_hvd.keras as hvd
from tf_hvd.keras import GuardError

pytestmark = [pytest.mark.framework, pytest.mark.jobs(2), pytest.mark.ranks(2)]

LIBRARIES = pytest.mark.parametrize("library", [keras, tf_keras])
NOT_REDUCED = r"(SGD|Adam) would apply gradients that were not reduced"


def make_model(library, optimizer=None, **options):
    model = library.Sequential([library.Input([3]), library.layers.Dense(1)])
    hvd.broadcast_variables(model.variables, 0)
    optimizer = optimizer or hvd.DistributedOptimizer(library.optimizers.SGD(0.1))
    model.compile(optimizer, "mse", **options)
    return model


def fit(model, **options):
    features = (np.arange(12.0).reshape(4, 3) / 10 + hvd.rank()).astype("float32")
    options = {"batch_size": 1, "shuffle": False, "verbose": 0, **options}
    return model.fit(features, np.ones([4, 1]), **options)


@LIBRARIES
@pytest.mark.parametrize("wrapped", [False, True])
def test_model_without_trainable_weights(library, wrapped):
    model = library.Sequential([library.Input([3]), library.layers.Dense(1, trainable=False)])
    optimizer = library.optimizers.SGD(0.1)
    model.compile(hvd.DistributedOptimizer(optimizer) if wrapped else optimizer, "mse")
    fit(model, epochs=2)


@LIBRARIES
def test_local_step_before_the_broadcast(library):
    """fit(steps_per_epoch=1) creates the optimizer's variables, which are then broadcast."""
    optimizer = library.optimizers.Adam(0.1)
    model = make_model(library, optimizer)
    fit(model, steps_per_epoch=1)
    variables = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
    hvd.broadcast_variables([*model.variables, *variables], 0)
    model.compile(hvd.DistributedOptimizer(optimizer), "mse")
    fit(model, epochs=2)
    hvd.check_weights(model)


@LIBRARIES
def test_local_step_after_a_failed_fit(library):
    """Regression: it was counted as another step of that `fit`, and stopped."""
    optimizer = library.optimizers.SGD(0.1)
    model = make_model(library, optimizer)

    def fail(epoch, logs):
        raise LookupError

    with pytest.raises(LookupError):
        fit(model, callbacks=[library.callbacks.LambdaCallback(on_epoch_begin=fail)])
    optimizer.build(model.trainable_variables)

    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(tf.ones([2, 3])) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    step()
    assert int(optimizer.iterations.numpy()) == 1
    with pytest.raises(tf.errors.InvalidArgumentError, match=NOT_REDUCED):
        step()


@LIBRARIES
def test_second_local_step_is_stopped(library):
    model = make_model(library, library.optimizers.Adam(0.1))
    fit(model, steps_per_epoch=1)
    before = [w.tobytes() for w in model.get_weights()]
    with pytest.raises(GuardError, match=NOT_REDUCED):
        fit(model, steps_per_epoch=1)
    assert [w.tobytes() for w in model.get_weights()] == before
    with pytest.raises(GuardError, match=NOT_REDUCED):
        fit(model)


def test_stopped_ranks_have_made_the_same_calls(rank, after):
    """Otherwise one rank's call would be matched with another rank's next step."""
    model = make_model(keras)
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)

    @tf.function(autograph=False)
    def step(features):
        # Rank 1 could be stopped before these calls, rank 0 between the second one and the update.
        loss = tf_hvd.allreduce(after(0.2 * rank, features[0, 0]), name="a_loss")
        tf_hvd.allreduce(loss, name="of_a_loss")
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(features) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        with tf.control_dependencies([after(0.5 - 0.5 * rank, features)]):
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    step(tf.ones([2, 3]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=NOT_REDUCED):
        step(tf.ones([2, 3]))
    assert tf_hvd.allreduce(tf.constant(5.0), name="of_a_loss") == 5.0


def test_two_local_steps_in_one_function():
    """Unrolled or in a loop: building the function already fails."""
    model = make_model(keras)
    features = tf.ones([2, 3])

    def step(optimizer):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(features * (hvd.rank() + 1.0)) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    for loop in (False, True):
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)

        def steps(optimizer=optimizer, loop=loop):
            if not loop:
                step(optimizer)
                step(optimizer)
                return

            def body(i):
                step(optimizer)
                return i + 1

            tf.while_loop(lambda i: i < 2, body, [0])

        with pytest.raises(GuardError, match=NOT_REDUCED):
            tf.function(steps, autograph=False)()


@LIBRARIES
@pytest.mark.parametrize("per_call", [1, 2])
def test_drift_after_the_first_epoch(library, per_call):
    model = make_model(library, steps_per_execution=per_call)

    class Change(library.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if hvd.rank() == 1 and epoch == 2:
                self.model.layers[-1].bias.assign_add([1e-6])

    ended = []
    note = library.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, _: ended.append(epoch))
    with pytest.raises(GuardError, match=r"weights differ in .*: rank 1 differs from rank 0"):
        fit(model, epochs=6, callbacks=[Change(), note])
    assert ended == [0, 1, 2]


@LIBRARIES
def test_different_learning_rates_are_named(library):
    model = make_model(library)

    class Reduce(library.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if hvd.rank() == 1 and epoch == 1:
                self.model.optimizer.learning_rate = 0.05

    text = r"differ in the learning rate of SGD: 0\.1 on rank 0, 0\.05 on rank 1"
    with pytest.raises(GuardError, match=text) as caught:
        fit(model, epochs=4, callbacks=[Reduce()])
    assert "weights differ" not in str(caught.value), "reported before it changes a weight"
    assert "never broadcast" not in str(caught.value), "not the cause here"


def test_stopping_one_rank_stops_all():
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = hvd.rank() == 0

    history = fit(make_model(keras), epochs=4, callbacks=[Stop()])
    assert len(history.epoch) == 1, "all ranks stop"


@LIBRARIES
def test_learning_rate_schedules(library):
    schedule = library.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)
    optimizers = [library.optimizers.SGD(schedule)]
    if library is tf_keras:
        optimizers.append(tf_keras.optimizers.legacy.SGD(schedule))
    for optimizer in optimizers:
        fit(make_model(library, hvd.DistributedOptimizer(optimizer)), epochs=2)


def test_check_weights_steps_with_join():
    """Rank 1 has fewer batches; after its join the other ranks still compare their weights."""
    model = make_model(keras)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), check_weights_steps=1)

    @tf.function(autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    optimizer.build(model.trainable_variables)
    for _ in range(2 if hvd.rank() == 1 else 5):
        step(tf.ones([2, 3]) * (hvd.rank() + 1.0))
    if hvd.rank() == 0:
        hvd.check_weights(model)
    tf_hvd.join()


def test_gradients_of_the_first_update_after_a_join():
    """A rank has no batches; the ranks that take part have all gradients."""
    variable = keras.Variable(np.ones(3, "float32"))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    frozen = keras.Variable(np.ones(2, "float32"))
    if hvd.rank() == 0:
        optimizer.apply([tf.fill([3], 2.0), None], [variable, frozen])
        assert variable.numpy().tolist() == [0.0, 0.0, 0.0]
    tf_hvd.join()
