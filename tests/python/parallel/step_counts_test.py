"""The cost of a training step: tf_hvd's Python functions, and calls, without a clock."""

import keras
import pytest
import tensorflow as tf

import tf_hvd as hvd
from tf_hvd.core import _native

pytestmark = [pytest.mark.framework, pytest.mark.jobs(2)]
VARIABLES = 20
# As on 2026-11-30, and slightly more: raise them deliberately if each step needs more.
MOST_FUNCTIONS, MOST_FOR_A_VARIABLE = 180, 8


def training(count=VARIABLES):
    """Applies the gradients of `count` small variables."""
    optimizer = hvd.keras.DistributedOptimizer(keras.optimizers.SGD(0.1))
    variables = [tf.Variable(tf.zeros([8])) for _ in range(count)]
    gradients = [tf.ones([8]) for _ in variables]
    optimizer.build(variables)
    return lambda: optimizer.apply(gradients, variables)


def begun(step):
    """The step, after its first runs, which differ from later ones."""
    for _ in range(3):
        step()
    return step


@pytest.fixture
def ours_called(functions_called):
    """The functions of tf_hvd that begin within a step."""

    def called(step):
        codes = functions_called(step)
        return [code.co_qualname for code in codes if "/tf_hvd/" in code.co_filename]

    return called


def submitted(step):
    before = _native.library.tf_hvd_submitted_count()
    step()
    return _native.library.tf_hvd_submitted_count() - before


def test_python_functions_of_an_eager_update(ours_called):
    of_one = ours_called(begun(training(1)))
    assert len(of_one) <= MOST_FUNCTIONS, sorted(of_one)
    of_many = ours_called(begun(training(VARIABLES + 1)))
    assert len(of_many) - len(of_one) <= MOST_FOR_A_VARIABLE * VARIABLES, sorted(of_many)


def test_a_compiled_step_runs_no_tf_hvd_python(ours_called):
    assert ours_called(begun(tf.function(training(), autograph=False))) == []


@pytest.mark.parametrize("wrap", [lambda step: step, tf.function], ids=["eager", "function"])
def test_small_gradients_are_one_call(wrap):
    assert submitted(begun(wrap(training()))) == 1
