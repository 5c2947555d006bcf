"""Typical lines of Horovod scripts and tests, under Horovod's names."""

import importlib
import json
import os
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_hvd
from tf_hvd.collectives import gradients

pytestmark = [
    pytest.mark.framework,
    pytest.mark.jobs(2),
    pytest.mark.usefixtures("horovod"),
]


def eagerly(function, array):
    return tf.nest.map_structure(lambda x: x.numpy(), function(tf.constant(array)))


def in_function(function, array):
    return eagerly(tf.function(function, autograph=False), array)


# Without the v1 Session, which Keras 3 does not support.
in_both_modes = pytest.mark.parametrize("evaluate", [eagerly, in_function])


def test_import_makes_the_gradients_horovods():
    import horovod.common.util as util
    import horovod.runner.launch  # noqa: F401 - programs that start jobs compute nothing

    assert util.split_list([1], 1) == [[1]]
    assert gradients.convention() == "tf_hvd"
    import horovod.tensorflow as hvd

    assert gradients.convention() == "horovod"
    x = tf.constant([[1.0 + hvd.rank()]])
    with tf.GradientTape() as tape:
        tape.watch(x)
        rows = hvd.allgather(x)
    assert tape.gradient(rows, x).numpy() == 1.0


def test_a_registered_set_with_a_wrong_id(evaluate):
    import horovod.tensorflow as hvd

    fake = hvd.ProcessSet([0, 1])
    fake.process_set_id = 10
    for collective in (hvd.allreduce, hvd.allgather, hvd.alltoall, hvd.reducescatter):
        with pytest.raises(ValueError, match="process set 10 does not exist"):
            evaluate(lambda x, call=collective: call(x, process_set=fake), np.ones([2]))
    with pytest.raises(ValueError, match="process set 10 does not exist"):
        fake.size()


@pytest.mark.parametrize("module", ["tensorflow", "tensorflow.keras", "common.process_sets"])
def test_a_set_of_all_ranks_is_a_duplicate_of_the_global_one(module):
    import horovod.tensorflow as hvd

    add = importlib.import_module(f"horovod.{module}").add_process_set
    unregistered = hvd.ProcessSet([1, 0])
    for all_ranks in (unregistered, [1, 0], range(2)):
        with pytest.raises(ValueError, match="Attempted to add a duplicate process set"):
            add(all_ranks)
    assert unregistered.process_set_id is None
    single = add([1])  # other sets work as before
    assert hvd.remove_process_set(single)


def test_under_tf_hvds_names_a_second_set_of_all_ranks_is_allowed():
    import horovod.common.process_sets  # noqa: F401 - which decides nothing

    beside = tf_hvd.add_process_set(range(2))
    try:
        total = tf_hvd.allreduce(tf.ones([]), op=tf_hvd.Sum, process_set=beside)
        assert (beside.size(), total.numpy()) == (2, 2.0)
    finally:
        assert tf_hvd.remove_process_set(beside)


def test_common_util():
    from horovod.common import util

    assert util.gpu_available("tensorflow") == bool(tf.config.list_physical_devices("GPU"))
    assert util.split_list([1, 2, 3], 2) == [[1, 2], [3]]
    assert [util.extension_available(name) for name in util.EXTENSIONS] == [True, False, False]
    assert (util.mpi_built(), util.gloo_built(), util.nccl_built()) == (True, False, 0)
    with util.env(HOROVOD_IDIOM="1", HOROVOD_OTHER=None):
        assert os.environ["HOROVOD_IDIOM"] == "1"
        assert "HOROVOD_OTHER" not in os.environ
    assert "HOROVOD_IDIOM" not in os.environ


def test_files_and_star_imports():
    import horovod
    import horovod.tensorflow as hvd

    assert os.path.isfile(horovod.__file__)
    assert os.path.isfile(hvd.__file__)
    for module in ("horovod.tensorflow.keras.callbacks", "horovod.keras.callbacks"):
        names = {}
        exec(f"from {module} import *", names)
        found = sorted(name for name in names if name != "__builtins__")
        assert found == [
            "BestModelCheckpoint",
            "BroadcastGlobalVariablesCallback",
            "LearningRateScheduleCallback",
            "LearningRateWarmupCallback",
            "MetricAverageCallback",
        ]
        assert sorted(set(found) & set(dir(sys.modules[module]))) == found
        assert names["BestModelCheckpoint"](monitor="loss").monitor == "loss"


def test_names_match_keras_and_tensorflow():
    """horovod.keras is for `import keras`, horovod.tensorflow.keras for tf.keras."""
    import horovod.keras.callbacks as of_keras
    import horovod.tensorflow.keras.callbacks as of_tf_keras

    for kind in ("MetricAverageCallback", "BestModelCheckpoint"):
        assert issubclass(getattr(of_keras, kind), keras.callbacks.Callback)
        assert issubclass(getattr(of_tf_keras, kind), tf.keras.callbacks.Callback)
    assert of_keras.BestModelCheckpoint("loss", 1, "min").verbose == 1


def test_defaults_are_visible():
    """Scripts read them without inspect.signature."""
    import horovod.tensorflow as hvd
    import horovod.tensorflow.keras as hvd_keras

    assert hvd.allreduce.__defaults__[0] is None
    assert hvd.allreduce.__defaults__[3] is hvd.Compression.none
    assert len(hvd.broadcast_variables.__defaults__) == 2
    assert hvd_keras.DistributedOptimizer.__defaults__[0] is None
    for function in (hvd.allgather, hvd.broadcast, hvd.alltoall, hvd.size_op):
        assert function.__defaults__ is not None


def test_a_timeline_has_horovods_events(tmp_path):
    import horovod.tensorflow as hvd
    import horovod.tensorflow.keras as hvd_keras

    hvd.start_timeline(str(tmp_path / "timeline.json"), mark_cycles=True)
    hvd.allreduce(tf.ones([3]), name="sum")
    hvd_keras.stop_timeline()
    (file,) = tmp_path.iterdir()
    events = json.loads(file.read_text().rstrip().rstrip(",") + "]")
    names = {event["name"] for event in events}
    assert names >= {"CYCLE_START", "NEGOTIATE_ALLREDUCE" if hvd.size() > 1 else "ALLREDUCE"}


def test_missing_names_raise_when_used():
    import horovod.tensorflow as hvd

    with pytest.raises(AttributeError, match=r"tf_hvd\.shard"):
        hvd.data  # noqa: B018
    with pytest.raises(ModuleNotFoundError, match="data"):
        import horovod.tensorflow.data  # noqa: F401


def test_objects_and_modes():
    import horovod.tensorflow as hvd

    assert hvd._executing_eagerly()
    assert hvd.util._executing_eagerly()
    assert hvd.broadcast_object({"rank": hvd.rank()}, root_rank=1) == {"rank": 1}
    assert hvd.allgather_object(hvd.rank()) == [0, 1]
    assert hvd.allreduce(tf.constant(float(hvd.rank())), average=False).numpy() == 1.0


def test_a_step_of_tensorflow2_mnist():
    import horovod.tensorflow as hvd

    weights = tf.Variable([[1.0 + hvd.rank()]])
    optimizer = tf.keras.optimizers.SGD(0.25 * hvd.size())

    @tf.function
    def training_step(x, first_batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.matmul(x, weights) - x) ** 2)
        tape = hvd.DistributedGradientTape(tape)
        grads = tape.gradient(loss, [weights])
        optimizer.apply_gradients(zip(grads, [weights], strict=True))
        if first_batch:
            hvd.broadcast_variables([weights], root_rank=0)
            hvd.broadcast_variables(optimizer.variables, root_rank=0)
        return loss

    for batch in range(3):
        training_step(tf.constant([[1.0 + hvd.rank()]]), batch == 0)
    assert len(set(hvd.allgather_object(weights.numpy().item()))) == 1


def small_model(library):
    dense = library.layers.Dense
    return library.Sequential([library.Input([2]), dense(2), dense(1)])


@pytest.mark.parametrize("module", ["tensorflow.keras", "keras"])
def test_keras_fit_and_load_model(module, tmp_path):
    hvd = importlib.import_module(f"horovod.{module}")
    library = tf.keras if module == "tensorflow.keras" else keras
    model = small_model(library)
    optimizer = hvd.DistributedOptimizer(
        library.optimizers.Adam(0.001 * hvd.size()), backward_passes_per_step=2
    )
    model.compile(loss="mse", optimizer=optimizer)
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(
            initial_lr=0.001 * hvd.size(), warmup_epochs=2, verbose=0
        ),
    ]
    x = np.random.default_rng(hvd.rank()).normal(size=(8, 2)).astype("float32")
    model.fit(x, x[:, :1], batch_size=2, epochs=2, verbose=0, callbacks=callbacks)
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = hvd.load_model(str(path))
    assert loaded.optimizer.horovod_distributed
    sums = [float(hvd.allreduce(np.sum(w), name="sum")) for w in loaded.get_weights()]
    np.testing.assert_allclose(sums, [np.sum(w) for w in model.get_weights()], rtol=1e-6)


def test_load_model_with_legacy_optimizers(tmp_path):
    import horovod.tensorflow.keras as hvd

    model = small_model(tf_keras)
    model.compile(loss="mse", optimizer=tf_keras.optimizers.legacy.SGD(0.1))
    path = str(tmp_path / "model.h5")
    model.save(path)
    loaded = hvd.load_model(path, legacy_opts=True)
    assert isinstance(loaded.optimizer, tf_keras.optimizers.legacy.SGD)
    assert loaded.optimizer.horovod_distributed


@in_both_modes
def test_keras_optimizers_have_allreduce(evaluate):
    """Horovod's private method reduces, and apply_gradients does not reduce again."""
    import horovod.tensorflow.keras as hvd

    variable = keras.Variable(np.zeros(2, "float32"))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum)
    assert optimizer.horovod_distributed
    optimizer.build([variable])

    def step(gradient):
        reduced = optimizer._allreduce([gradient], [variable])
        optimizer.apply_gradients(zip(reduced, [variable], strict=True))
        return reduced[0]

    reduced = evaluate(step, np.array([1.0, 2.0], "float32"))
    np.testing.assert_array_equal(reduced, [2.0, 4.0])
    np.testing.assert_array_equal(variable.numpy(), [-2.0, -4.0])

    def changed(gradient):
        reduced = optimizer._allreduce([gradient], [variable])
        optimizer.apply_gradients([(reduced[0] * 0.5, variable)])
        return reduced[0]

    with pytest.raises(ValueError, match="would reduce these gradients again"):
        evaluate(changed, np.array([1.0, 2.0], "float32"))
    # The next update is a normal one.
    optimizer.apply_gradients([(tf.constant([1.0, 1.0]), variable)])
    np.testing.assert_array_equal(variable.numpy(), [-4.0, -6.0])


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float16, np.float32])
@pytest.mark.parametrize("grouped", [False, True])
def test_scaled_sums_of_equal_tensors_are_equal_to_the_bit(size, dtype, grouped):
    """As Horovod's tests require: in the tensor's type; integers in float64, halves in float32."""
    import horovod.tensorflow as hvd

    factor = np.random.default_rng(7).uniform()
    x = np.random.default_rng(8).uniform(-100, 100, (17, 17)).astype(dtype)
    wide = {np.float16: np.float32, np.float32: np.float32}.get(dtype, np.float64)

    def times(values):
        return (wide(factor) * values.astype(wide)).astype(dtype)

    def summed(**options):
        if grouped:
            return hvd.grouped_allreduce([tf.constant(x)] * 2, op=hvd.Sum, **options)[1]
        return hvd.allreduce(tf.constant(x), op=hvd.Sum, **options)

    total = dtype(size)
    np.testing.assert_array_equal(summed(prescale_factor=factor), times(x) * total)
    np.testing.assert_array_equal(summed(postscale_factor=factor), times(x * total))
    rows = hvd.reducescatter(tf.constant(x), op=hvd.Sum, postscale_factor=factor)
    mine = slice(0, 9) if hvd.rank() == 0 else slice(9, 17)
    np.testing.assert_array_equal(rows, times(x * total)[mine])


@pytest.mark.parametrize("local", [0, 1])
def test_compute_gradients_of_a_partial_optimizer(rank, size, local):
    import horovod.tensorflow.keras as hvd

    layers = [tf_keras.layers.Dense(1, use_bias=False, kernel_initializer="ones") for _ in range(2)]
    model = tf_keras.Sequential([tf_keras.layers.Input([1]), *layers])
    optimizer = hvd.PartialDistributedOptimizer(
        tf_keras.optimizers.legacy.Adam(), local_layers=layers[:local]
    )
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_sum(model(tf.constant([[1.0 + rank]])))
    pairs = optimizer._compute_gradients(loss, model.trainable_weights, tape=tape)
    mine, mean = (1.0 + rank) / size, 1.5  # a local gradient is divided by the number of ranks
    assert [float(gradient[0, 0]) for gradient, _ in pairs] == [mine if local else mean, mean]


def test_keras_2_forms_work_only_under_horovods_names(monkeypatch, rank):
    import horovod.tensorflow.keras as hvd

    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam())
    model = small_model(keras)
    model.compile(optimizer, "mse", experimental_run_tf_function=False)
    assert model.optimizer is optimizer
    for each in (optimizer, keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())):
        assert [v.path for v in each.variables()] == [v.path for v in each.variables]
    hvd.broadcast(optimizer.variables()[0].value, 0)
    monkeypatch.setattr(gradients.Convention, "name", "tf_hvd")
    assert type(optimizer.variables) is list
    with pytest.raises(TypeError, match="experimental_run_tf_function"):
        model.compile(optimizer, "mse", experimental_run_tf_function=False)


def scaled(optimizer):
    return tf_keras.mixed_precision.LossScaleOptimizer(optimizer, dynamic=False, initial_scale=8)


KINDS = {
    "tf_keras": lambda: tf_keras.optimizers.SGD(1.0),
    "legacy": lambda: tf_keras.optimizers.legacy.SGD(1.0),
    "scaled": lambda: scaled(tf_keras.optimizers.SGD(1.0)),
    "scaled legacy": lambda: scaled(tf_keras.optimizers.legacy.SGD(1.0)),
}


@in_both_modes
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flags", [{}, {"experimental_aggregate_gradients": False}])
def test_compute_gradients_of_tf_keras_are_reduced_once(evaluate, kind, flags):
    import horovod.tensorflow.keras as hvd

    rank = hvd.rank()
    variable = tf.Variable([0.0, 0.0])
    optimizer = hvd.DistributedOptimizer(KINDS[kind](), op=hvd.Sum)
    compute = getattr(optimizer, "compute_gradients" if rank == 0 else "_compute_gradients")

    def step(factors):
        pairs = compute(lambda: tf.reduce_sum(variable * factors), [variable])
        optimizer.apply_gradients(pairs, **flags)
        return pairs[0][0]

    reduced = evaluate(step, np.float32([1 + rank, 2]))
    np.testing.assert_array_equal(reduced, [3.0, 4.0])
    np.testing.assert_array_equal(variable.numpy(), [-3.0, -4.0])
    # minimize() reduces where Keras does, also once.
    loss = tf.constant([1.0 + rank, 2.0])
    optimizer.minimize(lambda: tf.reduce_sum(variable * loss), [variable])
    np.testing.assert_array_equal(variable.numpy(), [-6.0, -8.0])


def test_private_compute_gradients_of_a_present_optimizer_has_horovods_signature():
    """In tf_keras only the older optimizers have it; Horovod adds it to both."""
    import horovod.tensorflow.keras as hvd

    variable = tf.Variable([2.0])
    optimizer = hvd.DistributedOptimizer(tf_keras.optimizers.SGD(1.0))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable * (1.0 + hvd.rank()))
    ((gradient, found),) = optimizer._compute_gradients(loss, [variable], None, tape)
    assert found is variable
    np.testing.assert_array_equal(gradient, [1.5])
    with pytest.raises(ValueError, match="Multiply the loss"):
        optimizer._compute_gradients(loss, [variable], grad_loss=tf.ones([]), tape=tape)
    plain = tf_keras.optimizers.SGD.from_config(optimizer.get_config())
    assert not hasattr(plain, "_compute_gradients")


@pytest.mark.parametrize("kind", ["tf_keras", "legacy"])
@pytest.mark.parametrize("flags", [{}, {"experimental_aggregate_gradients": False}])
def test_compute_gradients_of_several_passes_are_reduced_with_their_sum(kind, flags):
    import horovod.tensorflow.keras as hvd

    variable = tf.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(KINDS[kind](), op=hvd.Sum, backward_passes_per_step=2)
    name = "compute_gradients" if hvd.rank() == 0 else "_compute_gradients"
    for factor in (1.0, 10.0):
        loss = tf.constant([factor * (1 + hvd.rank())])
        pairs = getattr(optimizer, name)(lambda loss=loss: variable * loss, [variable])
        assert float(pairs[0][0][0]) == float(loss[0])  # this rank's: no update yet
        optimizer.apply_gradients(pairs, **flags)
    np.testing.assert_array_equal(variable.numpy(), [-33.0])


def test_the_code_of_alltoalls_gradient_can_be_replaced(monkeypatch):
    """TensorFlow Recommenders Addons accumulates in it."""
    import horovod.tensorflow as hvd
    from horovod.common import process_sets
    from horovod.tensorflow.mpi_ops import _alltoall_grad

    assert process_sets._temp_process_set_object(0) is hvd.global_process_set
    with pytest.raises(ValueError, match="process set 77 does not exist"):
        process_sets._temp_process_set_object(77)

    def gradient():
        x = tf.constant([[1.0], [2.0]])
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(hvd.alltoall(x) * (1.0 + hvd.rank()))
        return tape.gradient(loss, x)

    def tenfold(op, grad_wrt_output, grad_wrt_received_splits):
        return [10.0 * grad_wrt_output, None]

    np.testing.assert_array_equal(gradient(), [[1.0], [2.0]])  # from the ranks that got them
    monkeypatch.setattr(_alltoall_grad, "__code__", tenfold.__code__)
    np.testing.assert_array_equal(gradient(), [[10.0 * (1 + hvd.rank())]] * 2)


def test_optimizers_show_horovod():
    import horovod.tensorflow as hvd

    wrapped = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1))
    assert "horovod" in str(wrapped)
    assert isinstance(wrapped, hvd._DistributedOptimizer)
    assert isinstance(wrapped, hvd._LegacyOptimizer)
    plain = keras.optimizers.SGD(0.1)
    assert not getattr(plain, "horovod_distributed", False)
    assert hvd.DistributedOptimizer(plain).horovod_distributed is True


@in_both_modes
def test_local_gradient_aggregation(evaluate):
    """Two passes are added up; local variables stay on their rank, scaled."""
    import horovod.tensorflow as hvd

    reduce = hvd._make_allreduce_grads_fn(
        "Idiom", "", "", hvd.Compression.none, False, hvd.Sum, 1.0, None, hvd.global_process_set
    )
    kind = hvd.LocalGradientAggregationHelper._OPTIMIZER_TYPE_KERAS
    helper = hvd.LocalGradientAggregationHelper(2, reduce, False, True, hvd.rank(), kind)
    shared, local, unused = (tf.Variable([0.0]) for _ in range(3))
    helper.register_local_var(local)
    variables = [shared, local, unused]

    def one_pass(gradient):
        grads = helper.compute_gradients([gradient, gradient, None], variables)

        def apply():
            for grad, variable in zip(grads, variables, strict=True):
                if grad is not None:
                    variable.assign_sub(grad)
            return tf.constant(True)

        helper.apply_gradients(apply, None)
        return [grad for grad in grads if grad is not None]

    with pytest.raises(ValueError, match="compute_gradients"):
        helper.apply_gradients(lambda: None, None)
    evaluate(one_pass, np.array([1.0], "float32"))
    assert (float(shared[0]), float(local[0])) == (0.0, 0.0)
    evaluate(one_pass, np.array([3.0], "float32"))
    # The average over the passes is 2: summed over two ranks; and on one rank, halved.
    assert (float(shared[0]), float(local[0])) == (-4.0, -1.0)


def test_horovod_keras_allreduce_takes_average_and_op():
    import horovod.keras as hvd

    value = np.array([1.0 + hvd.rank()], "float32")
    assert hvd.allreduce(value).numpy() == 1.5
    assert hvd.allreduce(value, average=False).numpy() == 3.0
    assert hvd.allreduce(value, op=hvd.Sum).numpy() == 3.0


def test_a_partial_optimizer_of_horovod_keras():
    import horovod.keras as hvd

    model = small_model(keras)
    optimizer = hvd.PartialDistributedOptimizer(
        keras.optimizers.SGD(1.0), local_layers=model.layers[0]
    )
    assert optimizer.horovod_distributed


def test_a_broadcast_callback_with_its_own_on_batch_end():
    """Variables registered there are not broadcast before the first batch."""
    import horovod.keras as hvd

    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    own = model.trainable_variables[1]
    model.set_weights([w + hvd.rank() for w in model.get_weights()])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    original = callback.on_batch_end

    def register_and_broadcast(batch, logs=None):
        callback.register_local_var(own)
        original(batch, logs)

    callback.on_batch_end = register_and_broadcast
    with hvd.unguarded():
        model.fit(np.ones([2, 1]), np.ones([2, 1]), verbose=0, callbacks=[callback])
    np.testing.assert_array_equal(own.numpy(), [float(hvd.rank())])
    kernels = tf_hvd.allgather_object(model.trainable_variables[0].numpy())
    assert all(np.array_equal(kernel, kernels[0]) for kernel in kernels)
