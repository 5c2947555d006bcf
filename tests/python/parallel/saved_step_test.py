"""A module whose train step reduces its gradients: saved, stripped, loaded, and trained on."""

import pytest
import tensorflow as tf

import tf_hvd as hvd
import tf_hvd.keras as hvd_keras
from tf_hvd.strip import strip_ops
from tf_hvd.strip.api import find_ops

pytestmark = [pytest.mark.framework, pytest.mark.jobs(2)]


class ByTape(tf.Module):
    """A loop of one's own."""

    def __init__(self):
        self.weight = tf.Variable(tf.ones((2, 1)))

    @tf.function(input_signature=[tf.TensorSpec([1, 2])])
    def train(self, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(x @ self.weight)
        (gradient,) = hvd.DistributedGradientTape(tape).gradient(loss, [self.weight])
        self.weight.assign_sub(0.5 * gradient)
        return self.weight.read_value()


class ByOptimizer(ByTape):
    """The optimizer of a library, which counts the job's updates."""

    def __init__(self, library, passes=1):
        super().__init__()
        self.optimizer = hvd_keras.DistributedOptimizer(
            library.optimizers.SGD(0.5), backward_passes_per_step=passes
        )
        self.optimizer.build([self.weight])

    @tf.function(input_signature=[tf.TensorSpec([1, 2])])
    def train(self, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(x @ self.weight)
        gradient = tape.gradient(loss, self.weight)
        self.optimizer.apply_gradients([(gradient, self.weight)])
        return self.weight.read_value()


def make(kind):
    if kind == "tape":
        return ByTape()
    library = __import__("tf_keras" if kind == "tf_keras" else "keras")
    return ByOptimizer(library, passes=2 if kind == "passes" else 1)


@pytest.mark.parametrize("kind", ["tape", "keras", "tf_keras", "passes"])
def test_a_train_step_is_saved_stripped_loaded_and_trained_on(kind, folder):
    module = make(kind)
    x = tf.ones((1, 2)) * (hvd.rank() + 1)
    hvd.broadcast_variables([module.weight], root_rank=0)
    calls = 2 if kind == "passes" else 1

    def update(step):
        return [step(x).numpy() for _ in range(calls)][-1].ravel().tolist()

    change = 0.5 * calls * (hvd.size() + 1) / 2  # the mean of rank + 1
    assert update(module.train) == [1 - change] * 2
    saved, stripped = f"{folder}/saved", f"{folder}/stripped"
    if hvd.rank() == 0:
        tf.saved_model.save(module, saved, signatures={"train": module.train})
        strip_ops(saved, stripped)
    hvd.barrier()
    loaded = tf.saved_model.load(saved)
    # At the tenth the weights are compared, by all ranks: that which has saved it counts anew.
    for number in range(2, 13):
        assert update(loaded.train) == [1 - number * change] * 2
    if hvd.rank() == 0:
        assert not find_ops(stripped).found
        alone = tf.saved_model.load(stripped)
        assert update(alone.train) == [1 - change - 0.5 * calls] * 2
