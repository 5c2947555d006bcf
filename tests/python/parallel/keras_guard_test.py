"""The guard: the errors that it raises, and the programs that pass."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_hvd
import tf_hvd.keras as hvd
from tf_hvd.keras import GuardError

pytestmark = [pytest.mark.framework, pytest.mark.jobs(2)]

LIBRARIES = pytest.mark.parametrize("library", [keras, tf_keras])
NOT_REDUCED = r"(?s)DistributedOptimizer\(SGD.*Each of the \d ranks .* SGD .* not reduced"


def make_model(library, equal=True, layers=()):
    """A compiled model with a distributed optimizer; if not `equal`, with rank-specific weights."""
    model = library.Sequential(
        [library.Input([3]), *layers, library.layers.Dense(2), library.layers.Dense(1)]
    )
    if equal:
        hvd.broadcast_variables(model.variables, 0)
    else:
        model.set_weights([np.full(w.shape, 0.01 + hvd.rank() / 100) for w in model.get_weights()])
    model.compile(hvd.DistributedOptimizer(library.optimizers.SGD(0.1)), "mse")
    return model


def fit(model, **options):
    """Four steps with data that differs between ranks."""
    features = np.arange(12.0).reshape(4, 3) / 10 + hvd.rank()
    options = {"batch_size": 1, "shuffle": False, "verbose": 0, **options}
    return model.fit(features, np.ones([4, 1]), **options)


def weights_of(model):
    return [w.tobytes() for w in model.get_weights()]


@LIBRARIES
def test_correct_training_passes(library):
    fit(make_model(library), epochs=2)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("mode", ["fit", "train_on_batch", "steps", "function"])
@LIBRARIES
def test_plain_optimizer_is_stopped(library, mode):
    model = make_model(library)
    per_call = {"steps_per_execution": 2} if mode == "steps" else {}
    model.compile(library.optimizers.SGD(0.1), "mse", **per_call)
    before = weights_of(model)
    train = {
        "train_on_batch": lambda: model.train_on_batch(np.ones([2, 3]), np.ones([2, 1])),
        "function": own_loop(model, model.optimizer, tf.GradientTape),
    }.get(mode, lambda: fit(model))
    if mode in ("fit", "steps"):
        with pytest.raises(GuardError, match=NOT_REDUCED):
            train()
        assert weights_of(model) == before
        return
    train()  # the one step that creates the optimizer's variables
    before = weights_of(model)
    kind = GuardError if mode == "train_on_batch" else tf.errors.InvalidArgumentError
    with pytest.raises(kind, match=NOT_REDUCED):
        train()
    assert weights_of(model) == before


def own_loop(model, optimizer, make_tape):
    optimizer.build(model.trainable_variables)

    @tf.function(autograph=False)
    def step(x):
        with make_tape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    return lambda: step(tf.ones([2, 3]) * (hvd.rank() + 1.0))


@pytest.mark.ranks(2)
def test_plain_legacy_optimizer_is_stopped():
    model = make_model(tf_keras)
    model.compile(tf_keras.optimizers.legacy.SGD(0.1), "mse")
    with pytest.raises(GuardError, match=NOT_REDUCED):
        fit(model)


@pytest.mark.ranks(2)
def test_optimizer_without_its_hook_is_stopped():
    model = make_model(keras)
    again = type(model.optimizer).from_config(model.optimizer.get_config())
    model.compile(again, "mse")
    with pytest.raises(GuardError, match=NOT_REDUCED):
        fit(model)


@pytest.mark.ranks(2)
def test_plain_multi_optimizer_is_stopped():
    model = make_model(keras)
    several = keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.1))
    model.compile(keras.optimizers.MultiOptimizer(several), "mse")
    with pytest.raises(GuardError, match=NOT_REDUCED):
        fit(model)


@LIBRARIES
@pytest.mark.ranks(2)
def test_model_loaded_by_keras_is_stopped(library, tmp_path):
    """Regression: for a trained model, the right fix came last of three."""
    path = str(tmp_path / "model.keras")
    model = make_model(library)
    for cure in (
        r"^Wrap the optimizer: .*\nOr load the model with tf_hvd\.load_model\. ",
        r"^Load the model with tf_hvd\.load_model\(path\): .*\nOr wrap the optimizer again: ",
    ):
        model.save(path)
        with pytest.raises(GuardError, match=cure):
            fit(library.models.load_model(path))
        fit(model)


@LIBRARIES
def test_distributed_tape_with_a_plain_optimizer_passes(library):
    model = make_model(library)
    own_loop(
        model,
        library.optimizers.SGD(0.1),
        lambda: tf_hvd.DistributedGradientTape(tf.GradientTape()),
    )()
    hvd.check_weights(model)


def test_reduction_in_a_called_function_counts():
    model = make_model(keras)
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)

    @tf.function(autograph=False)
    def compute(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        return tf_hvd.grouped_allreduce(tape.gradient(loss, model.trainable_variables))

    @tf.function(autograph=False)
    def step(x):
        with tf.GradientTape() as tape:  # of other computations
            tape.watch(x)
            penalty = tf.reduce_sum(x * x)
        gradients = compute(x + 0.0 * tape.gradient(penalty, x))
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    step(tf.ones([2, 3]) * (hvd.rank() + 1.0))
    hvd.check_weights(model)


def test_gradients_from_outside_the_function():
    variables = [keras.Variable(np.ones(3, "float32"))]
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build(variables)

    @tf.function(autograph=False)
    def apply(gradient):
        optimizer.apply_gradients([(gradient, variables[0])])

    apply(tf_hvd.allreduce(tf.fill([3], hvd.rank() + 1.0)))
    hvd.check_weights(variables)


@pytest.mark.ranks(2)
@LIBRARIES
def test_missing_broadcast_is_reported(library):
    model = make_model(library, equal=False)
    text = (
        r"(?s)^Broadcast .*differ in 4 of 4 variables, first in .*kernel.*: "
        r"rank.* 1.* differs? from rank 0"
    )
    with pytest.raises(GuardError, match=text):
        fit(model, epochs=2)


@pytest.mark.ranks(2)
def test_branch_that_depends_on_the_rank_is_reported():
    model = make_model(keras)

    class Change(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if hvd.rank() == 1 and batch == 1:
                self.model.layers[-1].bias.assign_add([1e-6])

    text = r"(?s)callbacks on all ranks\..*differ in .*: rank.* 1.* differs? from "
    with pytest.raises(GuardError, match=text):
        fit(model, callbacks=[Change()])


@pytest.mark.ranks(2)
def test_update_that_bypasses_the_hooks_is_reported():
    class Own(keras.optimizers.SGD):
        def _overwrite_variables_directly_with_gradients(self, grads, trainable_variables):
            for gradient, variable in zip(grads, trainable_variables, strict=True):
                variable.assign_sub(gradient)
            return [], []

    model = make_model(keras)
    model.compile(hvd.DistributedOptimizer(Own(0.1)), "mse")
    with pytest.raises(GuardError, match="Own counted 4 updates but reduced no gradient"):
        fit(model)


@LIBRARIES
def test_local_values_may_differ(library):
    """Moving statistics, seeds, metrics and local variables may differ between ranks."""
    layers = [library.layers.BatchNormalization(), library.layers.Dropout(0.5, seed=hvd.rank())]
    model = make_model(library, layers=layers)
    last = model.layers[-1]
    for variable in last.trainable_variables:
        variable.assign_add(tf.fill(variable.shape, float(hvd.rank())))
        model.optimizer.register_local_var(variable)
    model.compile(model.optimizer, "mse", metrics=["mae"])
    fit(model, epochs=2)


@LIBRARIES
def test_guard_turned_off(library, monkeypatch):
    model = make_model(library, equal=False)
    model.compile(library.optimizers.SGD(0.1), "mse")
    with hvd.unguarded():
        fit(model)
    monkeypatch.setenv("TF_HVD_GUARD", "off")
    model = make_model(library, equal=False)
    model.compile(library.optimizers.SGD(0.1), "mse")
    fit(model)


def test_evaluate_and_predict_are_not_checked():
    model = make_model(keras, equal=False)
    model.compile("sgd", "mse")
    if hvd.rank() == 0:
        model.evaluate(np.ones([2, 3]), np.ones([2, 1]), verbose=0)
        model.predict(np.ones([2, 3]), verbose=0)


def test_check_weights_of_every_kind():
    dtypes = ["float16", "bfloat16", "float32", "float64", "int8", "int32", "int64", "bool"]
    variables = [tf.Variable(tf.cast(tf.ones([2, 2]), dtype)) for dtype in dtypes]
    variables += [tf.Variable(1.0), tf.Variable(tf.zeros([0, 3])), tf.Variable([[[float("nan")]]])]
    hvd.check_weights(variables)
    hvd.check_weights([])
    if hvd.size() > 1:
        variables[0].assign(-variables[0] if hvd.rank() == 0 else variables[0])
        with pytest.raises(GuardError, match="differ in 1 of 11 variables"):
            hvd.check_weights(variables)
