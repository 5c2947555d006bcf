"""The gradients that DistributedOptimizer reduces, how often, and what Keras does."""

import copy
import functools
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from finished import finished

import tf_hvd
import tf_hvd.keras as hvd
from tf_hvd.core import log
from tf_hvd.horovod import tf_keras as values
from tf_hvd.keras import compat

pytestmark = [pytest.mark.framework, pytest.mark.jobs(2)]


def mean(function):
    return sum(function(r) for r in range(hvd.size())) / hvd.size()


def make_variables(library=keras, count=2):
    kind = keras.Variable if library is keras else tf.Variable
    return [kind(np.ones(i + 2, "float32")) for i in range(count)]


def gradients_of(variables, rank):
    return [tf.fill(v.shape, float(i + 1 + rank)) for i, v in enumerate(variables)]


def apply(optimizer, variables, gradients=None):
    gradients = gradients_of(variables, hvd.rank()) if gradients is None else gradients
    optimizer.apply_gradients(zip(gradients, variables, strict=True))


def assert_updated(variables, factor=1.0):
    """Checks one SGD step with learning rate 1 and the mean gradient."""
    for i, variable in enumerate(variables):
        change = mean(lambda r, i=i: i + 1.0 + r) * factor
        np.testing.assert_array_equal(variable.numpy(), np.full(variable.shape, 1.0 - change))


def optimizers_of(library):
    return getattr(library, "optimizers", library)


def sgd(library, **options):
    return hvd.DistributedOptimizer(optimizers_of(library).SGD(1.0), **options)


@pytest.fixture(params=[keras, tf_keras, tf_keras.optimizers.legacy], ids=["3", "2", "legacy"])
def make(request):
    """Makes plain optimizers of one kind, by class name."""
    module = optimizers_of(request.param)
    return lambda kind, **options: getattr(module, kind)(**options)


def variables_for(optimizer):
    return make_variables(keras if compat.kind_of(optimizer) == compat.KERAS else tf_keras)


@pytest.mark.parametrize("in_function", [False, True])
def test_apply_gradients_by_hand(make, in_function):
    optimizer = hvd.DistributedOptimizer(make("SGD", learning_rate=1.0))
    variables = variables_for(optimizer)
    if compat.kind_of(optimizer) == compat.LEGACY and in_function:
        optimizer._create_all_weights(variables)
    elif in_function:
        optimizer.build(variables)
    step = lambda: apply(optimizer, variables)  # noqa: E731
    (tf.function(step, autograph=False) if in_function else step)()
    assert_updated(variables)


def test_skipped_aggregation():
    """The caller declares that the gradients are already reduced."""
    optimizer, variables = sgd(tf_keras), make_variables(tf_keras)
    pairs = list(zip(gradients_of(variables, hvd.rank()), variables, strict=True))
    optimizer.apply_gradients(pairs, skip_gradients_aggregation=True)
    for i, variable in enumerate(variables):
        np.testing.assert_array_equal(variable, np.full(variable.shape, -float(i + hvd.rank())))


def test_variable_overwritten_by_its_gradient_stays_local():
    """Like Keras' float8 scales: each rank keeps its own, and other gradients are reduced."""
    optimizer, variables = sgd(keras), make_variables(count=3)
    variables[2].overwrite_with_gradient = True
    gradients = gradients_of(variables, hvd.rank())
    apply(optimizer, variables, list(gradients))
    assert_updated(variables[:2])
    np.testing.assert_array_equal(variables[2], gradients[2])


@pytest.mark.parametrize("library", [tf_keras, tf_keras.optimizers.legacy])
def test_minimize_reduces_gradients(library):
    variables = make_variables(tf_keras)

    def loss():
        return tf.add_n(
            [tf.reduce_sum(v) * (i + 1.0 + hvd.rank()) for i, v in enumerate(variables)]
        )

    sgd(library).minimize(loss, variables)
    assert_updated(variables)


def test_wrapping_returns_the_same_instance(make):
    plain, optimizer = make("Adam"), make("Adam")
    result = hvd.DistributedOptimizer(optimizer)
    assert result is optimizer
    assert type(optimizer) is type(plain)
    unnamed = [{**o.get_config(), "name": ""} for o in (plain, optimizer)]
    assert unnamed[0] == unnamed[1]


def test_existing_state_is_kept(make):
    optimizer = make("SGD", learning_rate=1.0, momentum=0.5)
    variables = variables_for(optimizer)
    with hvd.unguarded():
        apply(optimizer, variables, [tf.fill(v.shape, 2.0) for v in variables])
    hvd.DistributedOptimizer(optimizer)
    apply(optimizer, variables, [tf.fill(v.shape, 1.0 + hvd.rank()) for v in variables])
    expected = 1.0 - 2.0 - (0.5 * 2.0 + mean(lambda r: 1.0 + r))
    for variable in variables:
        np.testing.assert_array_equal(variable.numpy(), np.full(variable.shape, expected))
    assert int(optimizer.iterations.numpy()) == 2


def test_wrapping_twice_is_refused(make):
    optimizer = hvd.DistributedOptimizer(make("SGD"))
    with pytest.raises(ValueError, match="twice"):
        hvd.DistributedOptimizer(optimizer)
    with pytest.raises(ValueError, match="twice"):
        tf_hvd.DistributedOptimizer(optimizer)


def test_wrapping_a_nested_optimizer_twice_is_refused():
    outer = keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(keras.optimizers.SGD()))
    with pytest.raises(ValueError, match="twice"):
        hvd.DistributedOptimizer(outer)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"backward_passes_per_step": 0}, ValueError, "at least 1"),
        ({"check_weights_steps": -1}, ValueError, "check_weights_steps=-1"),
        ({"groups": 0}, ValueError, "groups"),
        ({"op": 77}, ValueError, "op=77"),
    ],
)
def test_wrong_arguments(options, error, text):
    optimizer = keras.optimizers.SGD()
    with pytest.raises(error, match=text):
        hvd.DistributedOptimizer(optimizer, **options)
    assert compat.synchronizer_of(optimizer) is None


def test_other_objects_are_refused():
    cures = {
        "adam": r"keras\.optimizers\.get\('adam'\)",
        keras.optimizers.SGD: r"Pass SGD\(",
        object(): r"keras\.optimizers",
    }
    for wrong, cure in cures.items():
        for wrap in (hvd.DistributedOptimizer, tf_hvd.DistributedOptimizer):
            with pytest.raises(ValueError, match=f"not an optimizer.*{cure}"):
                wrap(wrong)


@pytest.mark.parametrize("library", [keras, tf_keras])
@pytest.mark.parametrize(
    "options", [{"groups": 1}, {"groups": 2}, {"compression": hvd.Compression.fp16}]
)
def test_options_of_the_reduction(library, options):
    optimizer, variables = sgd(library, **options), make_variables(library)
    apply(optimizer, variables)
    assert_updated(variables)


def test_op_sum():
    optimizer = tf_hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=tf_hvd.Sum, groups=1)
    variables = make_variables()
    apply(optimizer, variables)
    assert_updated(variables, hvd.size())


@pytest.mark.parametrize("library", [keras, tf_keras])
def test_groups_of_variables(library):
    variables = make_variables(library, 4)
    groups = [[variables[3], variables[0]], [variables[1]]]
    optimizer = sgd(library, groups=groups)
    optimizer.build(variables)
    step = tf.function(lambda: apply(optimizer, variables), autograph=False)
    step()
    assert_updated(variables)
    operations = step.get_concrete_function().graph.get_operations()
    found = [op for op in operations if op.type == "HorovodGroupedAllreduce"]
    assert [len(op.outputs) for op in found] == ([2, 1, 1] if hvd.size() > 1 else [])
    # Keras numbers its optimizers in each process: the number must not be in a request's name.
    assert not [op.name for op in found if optimizer.name.lower() in op.name.split("/")]


@pytest.mark.parametrize("library", [keras, tf_keras])
@pytest.mark.parametrize("scale", [True, False])
def test_local_variable(library, scale):
    variables = make_variables(library)
    optimizer = sgd(library, scale_local_gradients=scale)
    optimizer.register_local_var(variables[1])
    apply(optimizer, variables)
    assert_updated(variables[:1])
    own = (2.0 + hvd.rank()) / (hvd.size() if scale else 1)
    np.testing.assert_array_equal(variables[1].numpy(), np.full(3, np.float32(1.0) - own))


@pytest.mark.ranks(2)
@pytest.mark.parametrize("library", [keras, tf_keras])
@pytest.mark.parametrize("in_function", [False, True])
def test_gradient_is_none_on_one_rank(library, in_function):
    variables = make_variables(library)
    optimizer = sgd(library)
    optimizer.build(variables)
    gradients = gradients_of(variables, hvd.rank())
    if hvd.rank() == 1:
        gradients[1] = None

    def step():
        apply(optimizer, variables, gradients)

    name = getattr(variables[1], "path", variables[1].name)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"None.*: {name}"):
        (tf.function(step, autograph=False) if in_function else step)()


@pytest.mark.parametrize("library", [keras, tf_keras])
def test_gradient_is_none_on_all_ranks(library):
    variables, optimizer = make_variables(library), sgd(library)
    apply(optimizer, variables, [gradients_of(variables, hvd.rank())[0], None])
    assert_updated(variables[:1])
    np.testing.assert_array_equal(variables[1].numpy(), np.ones(3))


def count_reductions(optimizer, calls, variables):
    """Counts the reductions in this many calls of a compiled step."""
    before = compat.synchronizer_of(optimizer).updates
    optimizer.build(variables)
    step = tf.function(lambda: apply(optimizer, variables), autograph=False)
    for _ in range(calls):
        step()
    return compat.synchronizer_of(optimizer).updates - before


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 4),
        ({"gradient_accumulation_steps": 2}, 2),
        ({"use_ema": True, "ema_overwrite_frequency": 2}, 4),
        ({"clipvalue": 0.5}, 4),
        ({"global_clipnorm": 0.5}, 4),
        ({"weight_decay": 0.1}, 4),
    ],
)
def test_one_reduction_per_update(options, expected):
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, **options))
    assert count_reductions(optimizer, 4, make_variables()) == expected


@pytest.mark.parametrize("late", [False, True])
def test_multi_optimizer(late):
    variables = make_variables()
    several = {v.path: keras.optimizers.SGD(1.0) for v in variables}
    if late:
        known = keras.optimizers.MultiOptimizer(lambda variable: several[variable.path])
    else:
        known = keras.optimizers.OptimizerMap(keras.optimizers.SGD(1.0), several)
        known = keras.optimizers.MultiOptimizer(known)
    optimizer = hvd.DistributedOptimizer(known)
    optimizer.build(variables)
    tf.function(lambda: apply(optimizer, variables), autograph=False)()
    assert_updated(variables)
    with pytest.raises(ValueError, match="twice"):
        hvd.DistributedOptimizer(optimizer)


def overflow(variables):
    """Scaled gradients, not finite on the last rank."""
    bad = float("inf") if hvd.rank() == hvd.size() - 1 else 1.0
    return [tf.fill(v.shape, bad) for v in variables]


@pytest.mark.parametrize("inside", [True, False])
def test_all_ranks_skip_together(inside):
    optimizer = keras.optimizers.SGD(1.0)
    if inside:
        scaler = keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(optimizer))
    else:
        scaler = hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))
    variables = make_variables()
    scaler.build(variables)
    step = tf.function(lambda *g: apply(scaler, variables, list(g)), autograph=False)
    step(*overflow(variables))
    for variable in variables:
        np.testing.assert_array_equal(variable.numpy(), np.ones(variable.shape))
    assert float(scaler.dynamic_scale.numpy()) == 2.0**14
    step(*[g * 2.0**14 for g in gradients_of(variables, hvd.rank())])
    assert_updated(variables)
    assert int(scaler.iterations.numpy()) == 1


def test_all_ranks_of_tf_keras_skip_together():
    inner = hvd.DistributedOptimizer(tf_keras.optimizers.SGD(1.0))
    scaler = tf_keras.mixed_precision.LossScaleOptimizer(inner)
    variables = make_variables(tf_keras)
    scaler.build(variables)
    step = tf.function(lambda *g: apply(scaler, variables, list(g)), autograph=False)
    step(*overflow(variables))
    assert [variable.numpy().tolist() for variable in variables] == [[1.0] * 2, [1.0] * 3]
    assert float(scaler.loss_scale) == 2.0**14
    step(*gradients_of(variables, hvd.rank()))
    assert_updated(variables)


def test_copies_are_not_distributed():
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam())
    again = type(optimizer).from_config(optimizer.get_config())
    assert compat.synchronizer_of(again) is None
    assert compat.synchronizer_of(copy.deepcopy(optimizer)) is None


@pytest.mark.parametrize("check", ["updates", "none"])
def test_weights_are_compared_at_an_interval(check):
    variables = make_variables()
    optimizer = sgd(keras, check_weights_steps=2 if check == "updates" else 0)
    apply(optimizer, variables)
    variables[1].assign_add(np.full(3, hvd.rank(), "float32"))
    apply(optimizer, variables)
    if check == "none" or hvd.size() == 1:
        apply(optimizer, variables)
        return
    with pytest.raises(tf.errors.InvalidArgumentError, match="weights differ: "):
        apply(optimizer, variables)


def build_and_fit(library):
    library.utils.set_random_seed(3)
    model = library.Sequential([library.Input([3]), library.layers.Dense(1)])
    hvd.broadcast_variables(model.variables, 0)
    loss = library.losses.MeanSquaredError()  # because Keras 3 cannot load "mse" from HDF5
    model.compile(hvd.DistributedOptimizer(library.optimizers.Adam(0.1)), loss)
    model.fit(np.ones([4, 3]), np.ones([4, 1]), batch_size=2, verbose=0)
    return model


LOAD = """
import sys
sys.modules["tf_hvd"] = None  # importing it fails
import importlib, numpy as np
library = importlib.import_module(sys.argv[1])
model = library.models.load_model(sys.argv[2])
print(repr(model.predict(np.ones([2, 3]), verbose=0).tobytes().hex()))
print(type(model.optimizer).__module__, int(model.optimizer.iterations.numpy()))
model.fit(np.ones([4, 3]), np.ones([4, 1]), verbose=0)
print("trained")
"""


@pytest.mark.parametrize("library", [keras, tf_keras])
def test_saved_model_loads_without_tf_hvd(library, tmp_path):
    model = build_and_fit(library)
    if hvd.rank() != 0:
        return
    path = str(tmp_path / "model.keras")
    model.save(path)
    done = finished([sys.executable, "-P", "-c", LOAD, library.__name__, path])
    assert done.returncode == 0, done.stderr
    predicted = model.predict(np.ones([2, 3]), verbose=0).tobytes().hex()
    assert predicted in done.stdout
    assert f"{library.__name__}." in done.stdout.splitlines()[-2]
    assert done.stdout.splitlines()[-2].endswith(" 2")
    assert done.stdout.splitlines()[-1] == "trained"


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.parametrize("library", [keras, tf_keras])
def test_load_model_wraps_again(library, suffix, tmp_path):
    model = build_and_fit(library)
    path = str(tmp_path / f"model{suffix}")
    model.save(path)
    loaded = hvd.load_model(path)
    assert compat.synchronizer_of(loaded.optimizer) is not None
    assert type(loaded).__module__.startswith(f"{library.__name__}.")
    assert int(loaded.optimizer.iterations.numpy()) == 2
    if library is keras and suffix == ".h5":
        return  # Keras 3.15 cannot resume with an optimizer from HDF5, wrapped or not
    loaded.fit(np.ones([2, 3]) * hvd.rank(), np.ones([2, 1]), batch_size=2, verbose=0)
    hvd.check_weights(loaded)


def test_load_model_with_a_custom_optimizer(tmp_path):
    class Own(keras.optimizers.SGD):
        pass

    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(Own(0.5)), "mse")
    path = str(tmp_path / "model.keras")
    model.save(path)
    loaded = hvd.load_model(path, custom_optimizers=[Own])
    assert type(loaded.optimizer) is Own
    assert compat.synchronizer_of(loaded.optimizer) is not None


def test_load_model_with_options_of_the_optimizer(tmp_path):
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.25)), "mse")
    path = str(tmp_path / "model.keras")
    model.save(path)
    loaded = hvd.load_model(path, op=hvd.Sum)
    loaded.fit(np.ones([2, 3]), np.ones([2, 1]), batch_size=2, verbose=0)  # slopes of -2
    np.testing.assert_array_equal(loaded.get_weights()[0], np.full([3, 1], 0.5 * hvd.size()))


def test_saved_model_has_the_writers_partial_sums(tmp_path):
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1, kernel_initializer="zeros")])
    rank, size = hvd.rank(), hvd.size()
    sgd = keras.optimizers.SGD(0.5, gradient_accumulation_steps=2)
    model.compile(hvd.DistributedOptimizer(sgd), "mse")
    step = {"batch_size": 2, "epochs": 1, "verbose": 0}
    model.fit(np.ones([2, 3]), np.ones([2, 1]) * (1 + rank), **step)
    path = hvd.broadcast_object(str(tmp_path / "model.keras"), 0)
    if rank == 0:
        model.save(path)
    tf_hvd.barrier()
    loaded = hvd.load_model(path)
    for each, parts in ((model, sum(range(1, 1 + size)) / size), (loaded, 1)):
        each.fit(np.ones([2, 3]), np.ones([2, 1]), **step)  # completes the update
        slopes = [-2 * parts, -2 * 1]
        np.testing.assert_allclose(each.get_weights()[0], -0.5 * np.mean(slopes), rtol=1e-6)


@pytest.mark.parametrize("inner", [False, True])
def test_optimizers_with_equal_names_check_at_the_same_time(inner, rank):
    """Regression, found by a random program: one optimizer's check was matched with the other's."""
    variables = [keras.Variable(np.ones([8]), name="w", dtype="float64") for _ in range(4)]
    optimizers = [
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.25), check_weights_steps=2)
        for _ in variables
    ]

    def step(i):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variables[i].value * float(1 + i + rank))
        gradients = tape.gradient(loss, [variables[i].value])
        optimizers[i].apply_gradients(zip(gradients, [variables[i]], strict=True))

    steps = [functools.partial(step, i) for i in range(4)]
    steps = [tf.function(each) for each in steps] if inner else steps

    @tf.function
    def together():
        for each in steps:
            each()

    for _ in range(8):
        together()
    for i, variable in enumerate(variables):
        slope = 1 + i + (hvd.size() - 1) / 2
        np.testing.assert_allclose(variable.numpy(), 1 - 8 * 0.25 * slope, rtol=1e-12)


@pytest.mark.parametrize("gpu", [True, False])
def test_jit_compile(gpu, monkeypatch, caplog):
    """Where Keras would compile by default, on a GPU, rank 0 logs once that it does not."""
    log._once.cache_clear()
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    # On a machine with a GPU, "auto" compiles.
    monkeypatch.setattr("keras.src.trainers.trainer.model_supports_jit", lambda _: True)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda *_: [FakeGpu] * gpu)
    with hvd.unguarded():
        model.compile("sgd", "mse")
        assert model.jit_compile is gpu
    assert caplog.text == ""
    for _ in range(2):
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD()), "mse")
        assert model.jit_compile is (gpu and hvd.size() == 1)
    said = caplog.text.count('jit_compile="auto" means False here')
    assert said == (gpu and hvd.size() > 1 and hvd.rank() == 0)


class FakeGpu:
    device_type = "GPU"


FP16 = hvd.Compression.fp16
COMPILED = {
    "momentum": {"more": True},
    "passes, compressed": {"wrap": {"backward_passes_per_step": 2, "compression": FP16}},
    "low rank": {"wrap": {"compression": tf_hvd.PowerSGD(rank=1)}},
    "rows": {"embeds": True},
    "half, clipped": {"half": True, "global_clipnorm": 0.05},
}


def trained_model(library, jit, wrap=None, embeds=False, half=False, more=False, **optimizer):
    """The weights after some steps; the last step of each epoch has fewer samples.

    Args:
      more: whether to evaluate, and to train on a single batch, as well.
    """
    library.utils.set_random_seed(5)
    layers = library.layers
    dtype = "mixed_float16" if half else None
    first = [layers.Embedding(7, 4), layers.Flatten()] if embeds else [layers.Dense(6)]
    body = [*first, layers.Dense(5, activation="tanh", dtype=dtype), layers.Dense(1)]
    model = library.Sequential([library.Input([3], dtype="int32" if embeds else None), *body])
    inner = library.optimizers.SGD(0.05, momentum=0.9, **optimizer)
    if half:
        scaled = library if library is keras else library.mixed_precision
        inner = (library.optimizers if library is keras else scaled).LossScaleOptimizer(inner)
    model.compile(hvd.DistributedOptimizer(inner, **(wrap or {})), "mse", jit_compile=jit)
    numbers = np.random.default_rng(hvd.rank())
    x = numbers.integers(0, 7, [20, 3])
    y = np.sum(x, axis=1, keepdims=True) / 10
    hvd.broadcast_variables(model.variables, 0)
    data = x if embeds else x.astype(np.float32) / 7
    model.fit(data, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    if more:
        model.evaluate(data, y, verbose=0)
        model.train_on_batch(data[:8], y[:8])
    return model.get_weights()


@pytest.mark.compiled
@pytest.mark.parametrize(
    ("library", "kind"),
    [*((keras, kind) for kind in COMPILED), (tf_keras, "half, clipped")],
)
def test_compiled_steps_equal_other_steps(library, kind):
    compiled = trained_model(library, True, **COMPILED[kind])
    plain = trained_model(library, False, **COMPILED[kind])
    for ours, wanted in zip(compiled, plain, strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=2e-3, atol=2e-4)
        np.testing.assert_array_equal(hvd.broadcast(ours, 0), ours)


@pytest.mark.compiled
@pytest.mark.ranks(2)
@pytest.mark.parametrize("library", [keras, tf_keras])
def test_weights_are_compared_in_a_compiled_step(library, rank):
    """With an interval, updates 1 to 5 of one fit are checked before the third and the fifth."""
    model = library.Sequential([library.Input([3]), library.layers.Dense(1, name="head")])
    optimizer = hvd.DistributedOptimizer(library.optimizers.SGD(0.01), check_weights_steps=2)
    model.compile(optimizer, "mse", jit_compile=True)
    data = np.ones([10, 3], "f4"), np.ones([10, 1], "f4")
    hvd.broadcast_variables(model.variables, 0)
    model.fit(*data, batch_size=2, verbose=0)
    model.layers[-1].kernel.assign_add(np.full([3, 1], rank, "f4"))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"weights differ: .*kernel"):
        model.fit(*data, batch_size=2, verbose=0)


def test_horovod_keras_collectives_on_values():
    total = sum(range(1, hvd.size() + 1))
    assert float(values.allreduce(float(hvd.rank() + 1), op=hvd.Sum)) == total
    assert float(values.allreduce(float(hvd.rank() + 1), average=True)) == total / hvd.size()
    assert list(np.asarray(values.allgather([hvd.rank()]))) == list(range(hvd.size()))
    assert float(values.broadcast(float(hvd.rank() + 1), hvd.size() - 1)) == hvd.size()
    with tf.Graph().as_default():
        assert float(values.allreduce(float(hvd.rank() + 1), op=hvd.Sum)) == total
