"""A copy of a wrapped optimizer is not distributed, however it was made."""

import copy
import pickle

import cloudpickle
import keras
import pytest
import tensorflow as tf
import tf_keras

import tf_hvd
from tf_hvd.keras import DistributedOptimizer, compat
from tf_hvd.keras.synchronizer import GradientSynchronizer

MAKE = {
    "keras": lambda: keras.optimizers.SGD(0.5),
    "tf_keras": lambda: tf_keras.optimizers.SGD(0.5),
    "legacy": lambda: tf_keras.optimizers.legacy.SGD(0.5),
    "keras scaled": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.5), initial_scale=1.0
    ),
    "tf_keras scaled": lambda: tf_keras.mixed_precision.LossScaleOptimizer(
        tf_keras.optimizers.SGD(0.5), dynamic=False, initial_scale=1.0
    ),
    "multi": lambda: keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.5))
    ),
}
COPY = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "from_config": lambda optimizer: type(optimizer).from_config(optimizer.get_config()),
    "pickle": lambda optimizer: pickle.loads(pickle.dumps(optimizer)),
    "cloudpickle": lambda optimizer: cloudpickle.loads(cloudpickle.dumps(optimizer)),
}


@pytest.fixture(scope="module", autouse=True)
def _job():
    tf_hvd.init()


@pytest.fixture
def reductions(monkeypatch):
    """Collects the synchronizers that have reduced gradients."""
    seen = []
    reduce = GradientSynchronizer.reduce

    def counted(self, gradients, variables):
        seen.append(self)
        return reduce(self, gradients, variables)

    monkeypatch.setattr(GradientSynchronizer, "reduce", counted)
    return seen


def variable_for(kind):
    keras_3 = kind in ("keras", "keras scaled", "multi")
    return keras.Variable(4.0) if keras_3 else tf.Variable(4.0)


def update(optimizer, variable):
    """Makes one update with a gradient of 1; returns the change of the variable."""
    before = float(tf.convert_to_tensor(variable))
    optimizer.apply_gradients([(tf.constant(1.0), variable)])
    return before - float(tf.convert_to_tensor(variable))


@pytest.mark.parametrize("how", list(COPY))
@pytest.mark.parametrize("kind", list(MAKE))
def test_copied_optimizer_does_not_act_on_the_original(kind, how, reductions):
    try:
        COPY[how](MAKE[kind]())
    except Exception as error:
        pytest.skip(f"this kind of plain optimizer cannot be copied: {type(error).__name__}")
    original = DistributedOptimizer(MAKE[kind](), backward_passes_per_step=2)
    assert original.register_local_var
    copied = COPY[how](original)
    assert type(copied) is type(original)
    if list(compat.leaves(copied)) == list(compat.leaves(original)):
        # copy.copy of a tf_keras wrapper: the inner optimizer is the same object, and wrapped.
        assert compat.synchronizer_of(copied) is not None
        return
    assert compat.synchronizer_of(copied) is None
    assert not hasattr(copied, "register_local_var")
    steps = int(original.iterations)
    mine, its = variable_for(kind), variable_for(kind)
    assert update(copied, its) == 0.5, "a plain optimizer updates in each call"
    assert reductions == []
    if how != "copy":  # a plain copy of a tf_keras optimizer shares its variables
        assert int(original.iterations) == steps
        assert int(copied.iterations) == 1
    # The copy can be wrapped like any other, and the original is still wrapped.
    DistributedOptimizer(copied)
    update(copied, its)
    assert len(reductions) == 1
    update(original, mine)
    update(original, mine)
    leaf = next(compat.leaves(original))
    assert set(reductions[1:]) == {compat.synchronizer_of(leaf)}


def test_wrapping_does_not_change_other_objects_of_the_class(reductions):
    class Own(keras.optimizers.SGD):
        def _clip_gradients(self, grads):
            return super()._clip_gradients(grads)

    DistributedOptimizer(keras.optimizers.SGD(0.5))
    own = DistributedOptimizer(Own(0.5))
    assert update(keras.optimizers.SGD(0.5), keras.Variable(4.0)) == 0.5
    assert update(Own(0.5), keras.Variable(4.0)) == 0.5
    assert reductions == []
    assert update(own, keras.Variable(4.0)) == 0.5
    assert len(reductions) == 1, "once, although both classes look for hooks"


def test_method_replaced_on_the_instance_is_refused():
    optimizer = keras.optimizers.SGD(0.5)
    vars(optimizer)["apply"] = optimizer.apply
    with pytest.raises(ValueError, match=r"apply\(\) of this .* was replaced on the instance"):
        DistributedOptimizer(optimizer)
