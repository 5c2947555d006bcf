"""The private parts of Keras that tf_hvd hooks into, and the error for a missing one."""

import types

import keras
import pytest
import tensorflow as tf
import tf_keras

from tf_hvd.core.tensorflow_hooks import BACKPROP, parallel_dataset
from tf_hvd.keras import compat, patches


@pytest.mark.parametrize("library", [keras, tf_keras])
def test_all_hooks_exist(library):
    assert compat.missing_hooks(library) == []


def test_tape_ops_are_in_its_name_scope():
    """TensorFlow does not guarantee this, and a change would not raise an error."""

    @tf.function(autograph=False)
    def function(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x * x
        return tape.gradient(y, x)

    graph = function.get_concrete_function(tf.TensorSpec([], tf.float32)).graph
    assert any(BACKPROP in op.name for op in graph.get_operations())


NUMBERS = tf.data.Dataset.range(2)


@pytest.mark.parametrize(
    ("parallel", "make"),
    [
        (False, NUMBERS.map),
        (True, lambda f: NUMBERS.map(f, num_parallel_calls=2)),
        (
            True,
            lambda f: NUMBERS.interleave(
                lambda x: tf.data.Dataset.from_tensors(f(x)), num_parallel_calls=2
            ),
        ),
    ],
)
def test_parallel_dataset_traces_its_function_when_created(parallel, make):
    seen = []

    def note(x):
        seen.append(parallel_dataset())
        return x

    make(note)
    assert seen
    assert all((each is not None) == parallel for each in seen)


class Base:
    def apply(self):
        pass

    def _clip_gradients(self):
        pass


class Other:
    def __init__(self):
        pass


def without(*missing):
    """A module like Keras 3, with parts of SGD and Model missing."""
    names = {"apply", "_backend_apply_gradients", "_clip_gradients"} - set(missing)
    sgd = type("SGD", (), dict.fromkeys(names, lambda self: None))
    scale = {"check_finite": None} if "check_finite" not in missing else {}
    trainer = {"_resolve_auto_jit_compile": None} if "jit" not in missing else {}
    trainer |= {"fit": None, "train_on_batch": None}
    makers = {f"make_{name}_function" for name in ("train", "test", "predict")} - set(missing)
    trainer |= dict.fromkeys(makers)
    trainer |= {"_flatten_layers": list} if "_flatten_layers" not in missing else {}
    layer = {"call": None} if "call" not in missing else {}
    checkpoint = {"on_train_batch_end", "on_epoch_end"} - set(missing)
    backup = {"_save_model": None} if "_save_model" not in missing else {}
    progress = {"set_params": None} if "set_params" not in missing else {}
    return types.SimpleNamespace(
        __name__="keras",
        __version__="99.0",
        backend=types.SimpleNamespace(backend=lambda: "tensorflow"),
        callbacks=types.SimpleNamespace(
            CallbackList=Other,
            ModelCheckpoint=type("ModelCheckpoint", (), dict.fromkeys(checkpoint)),
            BackupAndRestore=type("BackupAndRestore", (), backup),
            ProgbarLogger=type("ProgbarLogger", (), progress),
        ),
        optimizers=types.SimpleNamespace(
            Optimizer=sgd, SGD=sgd, LossScaleOptimizer=type("LossScaleOptimizer", (), scale)
        ),
        layers=types.SimpleNamespace(BatchNormalization=type("BatchNormalization", (), layer)),
        Model=type("Model", (), trainer),
    )


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ("_clip_gradients", "keras: SGD._clip_gradients"),
        ("_backend_apply_gradients", "keras: SGD._backend_apply_gradients"),
        ("check_finite", "keras: LossScaleOptimizer.check_finite"),
        ("jit", "keras: Model._resolve_auto_jit_compile"),
        ("_flatten_layers", "keras: Model._flatten_layers"),
        ("make_predict_function", "keras: Model.make_predict_function"),
        ("call", "keras: BatchNormalization.call"),
        ("on_epoch_end", "keras: ModelCheckpoint.on_epoch_end"),
        ("set_params", "keras: ProgbarLogger.set_params"),
        ("_save_model", "keras: BackupAndRestore._save_model"),
    ],
)
def test_missing_hook_is_named(missing, named):
    module = without(missing)
    assert compat.missing_hooks(module) == [named]
    with pytest.raises(
        ImportError, match=r"keras 99\.0, which does not have .*" + missing.strip("_")
    ):
        patches.patch(module)


def test_other_backends_are_not_changed():
    module = without("_clip_gradients")
    module.backend.backend = lambda: "jax"
    patches.patch(module)


@pytest.mark.parametrize(
    ("optimizer", "kind"),
    [
        (keras.optimizers.Adam(), compat.KERAS),
        (tf_keras.optimizers.Adam(), compat.TF_KERAS),
        (tf_keras.optimizers.legacy.Adam(), compat.LEGACY),
        (keras.optimizers.Adam, None),
        ("adam", None),
    ],
)
def test_kind_of_optimizer(optimizer, kind):
    assert compat.kind_of(optimizer) == kind
