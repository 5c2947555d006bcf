"""Optimizers with a class that overrides `apply`, `apply_gradients` or the like, and clips there.

Each must train like the same class in one process with the whole batch. Its update is not linear in
the gradients, so clipping before the reduction would change the result.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_hvd
import tf_hvd.keras as hvd

pytestmark = [pytest.mark.framework, pytest.mark.jobs(2)]

legacy = tf_keras.optimizers.legacy
ROWS, STEPS, CLIP = 12, 2, 0.05


def clipped(gradient):
    return None if gradient is None else tf.clip_by_norm(gradient, CLIP)


class InApply(keras.optimizers.SGD):
    """Clips in `apply`; calls super's `apply` with named arguments, as an optimizer may."""

    def apply(self, grads, trainable_variables=None):
        return super().apply([clipped(g) for g in grads], trainable_variables)


class OfMixin:
    def apply(self, grads, trainable_variables=None):
        return super().apply([clipped(g) for g in grads], trainable_variables)


class WithMixin(OfMixin, keras.optimizers.SGD):
    pass


class InApplyGradients(keras.optimizers.SGD):
    def apply_gradients(self, grads_and_vars):
        return super().apply_gradients([(clipped(g), v) for g, v in grads_and_vars])


class InBoth(InApplyGradients):
    def apply(self, grads, trainable_variables=None):
        return super().apply([2.0 * g for g in grads], trainable_variables)


class InBackend(keras.optimizers.SGD):
    def _backend_apply_gradients(self, grads, trainable_variables):
        grads = [clipped(g) for g in grads]
        return super()._backend_apply_gradients(grads, trainable_variables)


class WithoutSuper(keras.optimizers.SGD):
    def apply(self, grads, trainable_variables=None):
        known = trainable_variables or self._trainable_variables
        for gradient, variable in zip(grads, known, strict=True):
            variable.assign_sub(0.5 * clipped(gradient))
        self.iterations.assign_add(1)


class Twice(keras.optimizers.SGD):
    """Makes two updates with one gradient."""

    def apply(self, grads, trainable_variables=None):
        super().apply([clipped(g) for g in grads], trainable_variables)
        return super().apply([0.1 * g for g in grads], trainable_variables)


class ByParts(keras.optimizers.SGD):
    """Makes one update per variable."""

    def apply(self, grads, trainable_variables=None):
        if not self.built:
            self.build(trainable_variables)
        for gradient, variable in zip(grads, trainable_variables, strict=True):
            super().apply([clipped(gradient)], [variable])


class Sharpness(keras.optimizers.SGD):
    """SAM: uses the gradient at other weights, which the method computes from the batch itself."""

    def apply(self, grads, trainable_variables=None):
        size = tf.linalg.global_norm(grads)
        away = [0.1 * g / size for g in grads]
        for variable, way in zip(trainable_variables, away, strict=True):
            variable.assign_add(way)
        fresh = gradients_of(trainable_variables, self.rows)
        for variable, way in zip(trainable_variables, away, strict=True):
            variable.assign_sub(way)
        return super().apply(fresh, trainable_variables)


class SharpnessInTwo(keras.optimizers.SGD):
    """SAM by super's methods: the first update moves the weights, the second moves them back."""

    def apply(self, grads, trainable_variables=None):
        kept = [tf.identity(v) for v in trainable_variables]
        super().apply([clipped(g) for g in grads], trainable_variables)
        fresh = gradients_of(trainable_variables, self.rows)
        for variable, value in zip(trainable_variables, kept, strict=True):
            variable.assign(value)
        return super().apply(fresh, trainable_variables)


class OfTfKeras(tf_keras.optimizers.SGD):
    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        pairs = [(clipped(g), v) for g, v in grads_and_vars]
        return super().apply_gradients(pairs, *args, **kwargs)


class OfLegacy(legacy.SGD):
    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        pairs = [(clipped(g), v) for g, v in grads_and_vars]
        return super().apply_gradients(pairs, *args, **kwargs)


class InMinimize(tf_keras.optimizers.SGD):
    def minimize(self, loss, var_list, tape=None):
        pairs = self.compute_gradients(loss, var_list, tape)
        self.apply_gradients([(clipped(g), v) for g, v in pairs])


class InLegacyMinimize(legacy.SGD):
    def minimize(self, loss, var_list, grad_loss=None, name=None, tape=None):
        pairs = self._compute_gradients(loss, var_list, grad_loss, tape)
        return self.apply_gradients([(clipped(g), v) for g, v in pairs], name)


class Branching(keras.optimizers.SGD):
    """Has a branch that AutoGraph converts to a tf.cond, if it does so without tf_hvd."""

    def apply_gradients(self, grads_and_vars):
        pairs = list(grads_and_vars)
        if tf.norm(pairs[0][0]) > CLIP:
            scale = CLIP / tf.norm(pairs[0][0])
        else:
            scale = tf.ones([], tf.float64)
        return super().apply_gradients([(g * scale, v) for g, v in pairs])


KERAS = (
    InApply, WithMixin, InApplyGradients, InBoth, InBackend, WithoutSuper, Twice, ByParts,
    Sharpness, SharpnessInTwo,
)  # fmt: skip
TF_KERAS = (OfTfKeras, OfLegacy, InMinimize, InLegacyMinimize)


def rows_of(step, mine):
    """The inputs of a step: this rank's share, or all."""
    generator = np.random.default_rng(step)
    x, y = generator.standard_normal((ROWS, 3)), generator.standard_normal(ROWS)
    share = ROWS // hvd.size()
    part = slice(hvd.rank() * share, (hvd.rank() + 1) * share) if mine else slice(None)
    return x[part], y[part]


def loss_of(variables, rows):
    x, y = rows
    kernel, bias = (tf.convert_to_tensor(v) for v in variables)
    return tf.reduce_mean(tf.square(tf.linalg.matvec(x, kernel) + bias[0] - y))


def gradients_of(variables, rows, factor=1.0):
    plain = [getattr(v, "value", v) if isinstance(v, keras.Variable) else v for v in variables]
    with tf.GradientTape() as tape:
        loss = loss_of(plain, rows) * factor
    return tape.gradient(loss, plain)


def make_variables(library):
    values = np.array([0.3, -0.2, 0.1]), np.array([0.4])
    if library is keras:
        return [keras.Variable(v, dtype="float64") for v in values]
    return [tf.Variable(v) for v in values]


def train(optimizer, library, mine, in_function=True, passes=1, built=False, converted=False):
    """The variables after some steps; one process sums the batches of `passes`."""
    variables = make_variables(library)
    if in_function or built:
        build = getattr(optimizer, "build", None) or optimizer._create_all_weights
        build(variables)
        optimizer.iterations  # noqa: B018 - a legacy one makes it when it is asked

    def step(*batches):
        found = []
        for rows in batches:
            optimizer.rows = rows
            if "Minimize" in type(optimizer).__name__:
                optimizer.minimize(lambda rows=rows: loss_of(variables, rows), variables)
                continue
            scale = getattr(optimizer, "scale_loss", lambda loss: loss)(1.0)
            found.append(gradients_of(variables, rows, tf.cast(scale, tf.float64)))
        if found:
            sums = [sum(each) for each in zip(*found, strict=True)]
            optimizer.apply_gradients(list(zip(sums, variables, strict=True)))

    call = tf.function(step, autograph=converted) if in_function else step
    for i in range(0, STEPS, passes):
        batches = [rows_of(j, mine) for j in range(i, i + passes)]
        call(*(tuple(map(tf.constant, rows)) for rows in batches))
    return [np.asarray(v) for v in variables]


def assert_as_one_process(make, library=keras, passes=1, wrap=hvd.DistributedOptimizer, **how):
    """Checks that the optimizers from `make` train the same in one process and on all ranks."""
    with hvd.unguarded():
        single = train(make(), library, False, in_function=False, passes=passes)
    together = train(wrap(make()), library, True, **how)
    for a, b in zip(together, single, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)
    assert np.abs(single[0] - np.asarray(make_variables(library)[0])).max() > 1e-3


@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("kind", KERAS + TF_KERAS, ids=lambda kind: kind.__name__)
def test_users_method_clips_reduced_gradients(kind, in_function):
    library = keras if kind in KERAS else tf_keras
    assert_as_one_process(lambda: kind(0.5), library, in_function=in_function)


def test_autograph_converts_users_method_as_usual():
    assert_as_one_process(lambda: Branching(0.5), converted=True)


@pytest.mark.parametrize("kind", [InApply, InApplyGradients, OfTfKeras], ids=lambda k: k.__name__)
def test_sum_of_passes_is_reduced_and_clipped_once(kind):
    def wrap(optimizer):
        return hvd.DistributedOptimizer(optimizer, backward_passes_per_step=2)

    library = keras if kind in KERAS else tf_keras
    assert_as_one_process(lambda: kind(0.5), library, passes=2, wrap=wrap)


CASES = {
    "accumulated": (InApply, {"gradient_accumulation_steps": 2}),
    "accumulated, by pairs": (InApplyGradients, {"gradient_accumulation_steps": 2}),
    "accumulated, own gradients": (Sharpness, {"gradient_accumulation_steps": 2}),
    "a scaled loss": (InApply, {"loss_scale_factor": 8.0}),
    "a second clip": (InApply, {"clipnorm": 0.01}),
    "built before": (InApply, {}),
}


@pytest.mark.parametrize("name", list(CASES))
def test_accumulation_options_of_keras(name):
    """Keras accumulates after the method: each pass is clipped and reduced."""
    kind, options = CASES[name]
    assert_as_one_process(
        lambda: kind(0.5, **options), built=not options, in_function=bool(options)
    )


@pytest.mark.parametrize("outside", [False, True], ids=["given", "around"])
@pytest.mark.parametrize("library", [keras, tf_keras, legacy], ids=["3", "2", "legacy"])
def test_loss_scaling(library, outside):
    kind = {keras: InApply, tf_keras: OfTfKeras, legacy: OfLegacy}[library]
    module = keras if library is keras else tf_keras
    scaling = getattr(module, "mixed_precision").LossScaleOptimizer  # noqa: B009

    def scaled(optimizer):
        if library is keras:
            return scaling(optimizer, initial_scale=8.0)
        return Unscaling(scaling(optimizer, initial_scale=8.0))

    if outside:
        with hvd.unguarded():
            single = train(scaled(kind(0.5)), module, False, in_function=False)
        together = train(scaled(hvd.DistributedOptimizer(kind(0.5))), module, True, False)
    else:
        with hvd.unguarded():
            single = train(scaled(kind(0.5)), module, False, in_function=False)
        optimizer = scaled(kind(0.5))
        hvd.DistributedOptimizer(getattr(optimizer, "inner", optimizer))
        together = train(optimizer, module, True, in_function=False)
    for a, b in zip(together, single, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


class Unscaling:
    """Scales and unscales like a program with a LossScaleOptimizer of tf_keras."""

    def __init__(self, inner):
        self.inner = inner

    def scale_loss(self, factor):
        return self.inner.get_scaled_loss(tf.constant(factor, tf.float64))

    def apply_gradients(self, pairs):
        unscaled = self.inner.get_unscaled_gradients([g for g, _ in pairs])
        self.inner.apply_gradients(list(zip(unscaled, [v for _, v in pairs], strict=True)))


class ClipsAround(keras.optimizers.Optimizer):
    """An optimizer that wraps another one, and clips the gradients that it passes on."""

    def __init__(self, inner_optimizer):
        super().__init__(learning_rate=0.0)
        self.inner_optimizer = inner_optimizer

    def build(self, var_list):
        self.inner_optimizer.build(var_list)
        super().build(var_list)

    def apply(self, grads, trainable_variables=None):
        self.inner_optimizer.apply([clipped(g) for g in grads], trainable_variables)


class ClippingScale(keras.optimizers.LossScaleOptimizer):
    def apply(self, grads, trainable_variables=None):
        return super().apply([clipped(g) for g in grads], trainable_variables)


class ClippingSeveral(keras.optimizers.MultiOptimizer):
    def apply(self, grads, trainable_variables=None):
        return super().apply([clipped(g) for g in grads], trainable_variables)


def several(kind=keras.optimizers.MultiOptimizer, inner=keras.optimizers.SGD):
    made = {}

    def choose(variable):
        return made.setdefault(len(variable.shape) and variable.shape[0], inner(0.5))

    return kind(choose)


MAKERS = {
    "around an optimizer": lambda: ClipsAround(keras.optimizers.SGD(0.5)),
    "around one that clips": lambda: ClipsAround(InApply(0.5)),
    "around several": lambda: several(ClippingSeveral),
    "several that clip": lambda: several(inner=InApply),
    "with a loss scale": lambda: ClippingScale(keras.optimizers.SGD(0.5), initial_scale=8.0),
}


@pytest.mark.parametrize(
    ("name", "passes"),
    [*((name, 1) for name in MAKERS), ("around an optimizer", 2), ("around several", 2)],
)
def test_optimizers_that_wrap_others(name, passes):
    def wrap(optimizer):
        return hvd.DistributedOptimizer(optimizer, backward_passes_per_step=passes)

    assert_as_one_process(MAKERS[name], passes=passes, wrap=wrap)


def test_own_gradients_with_op_sum():
    """In a function, the origin of gradients is visible; in eager mode an error is raised."""

    def wrap(optimizer):
        return hvd.DistributedOptimizer(optimizer, op=tf_hvd.Sum)

    with hvd.unguarded():
        single = train(Sharpness(0.125 * hvd.size()), keras, False, in_function=False)
    together = train(wrap(Sharpness(0.125)), keras, True)  # Keras stores the rate as float32
    for a, b in zip(together, single, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match=r"Sharpness.*op=Average"):
        train(wrap(Sharpness(0.5)), keras, True, in_function=False)


@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
def test_local_and_missing_gradients(in_function):
    """A local variable's gradient stays local, and None stays None."""
    optimizer = hvd.DistributedOptimizer(InApply(1.0))
    variables = [keras.Variable(np.zeros(2), dtype="float64") for _ in range(4)]
    optimizer.register_local_var(variables[1])
    variables[2].overwrite_with_gradient = True
    optimizer.build(variables)
    mine = tf.fill([2], tf.cast(hvd.rank() + 1, tf.float64))

    def step():
        optimizer.apply_gradients(zip([mine, mine, mine, None], variables, strict=True))

    (tf.function(step, autograph=False) if in_function else step)()
    own = np.full(2, CLIP / np.sqrt(2))
    np.testing.assert_allclose(variables[0], -own, rtol=0, atol=1e-15)
    np.testing.assert_allclose(variables[1], -own, rtol=0, atol=1e-15)
    np.testing.assert_allclose(variables[2], own, rtol=0, atol=1e-15)
    np.testing.assert_array_equal(variables[3], np.zeros(2))


@pytest.mark.parametrize("kind", [WithoutSuper, OfTfKeras], ids=lambda k: k.__name__)
def test_fit_counts_updates_and_load_model_hooks_again(kind, tmp_path, float64):
    library = keras if kind in KERAS else tf_keras
    with float64(library):

        def rows(mine):
            batches = [rows_of(i, mine) for i in range(STEPS)]
            return [np.concatenate([batch[part] for batch in batches]) for part in (0, 1)]

        def model_of(optimizer):
            model = library.Sequential([library.Input([3]), library.layers.Dense(1)])
            model.set_weights([np.array([[0.3], [-0.2], [0.1]]), np.array([0.4])])
            model.compile(optimizer, "mse")
            return model

        def fit(model, mine):
            size = ROWS // hvd.size() if mine else ROWS
            model.fit(*rows(mine), batch_size=size, shuffle=False, epochs=1, verbose=0)

        with hvd.unguarded():
            single = model_of(kind(0.5))
            for _ in range(2):
                fit(single, False)
        model = model_of(hvd.DistributedOptimizer(kind(0.5)))
        fit(model, True)
        path = tmp_path / f"{hvd.rank()}.keras"
        model.save(path)
        loaded = hvd.load_model(path, custom_optimizers=[kind])
        fit(loaded, True)
        for a, b in zip(loaded.get_weights(), single.get_weights(), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)
        assert int(loaded.optimizer.iterations.numpy()) == 2 * STEPS
