"""A module with a train step that reduces gradients: saved, stripped, loaded, and trained."""

import keras
import pytest
import tensorflow as tf

import tf_hvd as hvd
import tf_hvd.keras as hvd_keras
from tf_hvd.strip import strip_ops
from tf_hvd.strip.api import find_ops
from tf_hvd.strip.errors import StripError

pytestmark = [pytest.mark.framework, pytest.mark.jobs(2)]


class ByTape(tf.Module):
    """A custom loop."""

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
    """A library's optimizer, which counts the job's updates."""

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
    # At the tenth, all ranks compare the weights; the rank that saved the module counts from 0.
    for number in range(2, 13):
        assert update(loaded.train) == [1 - number * change] * 2
    if hvd.rank() == 0:
        assert not find_ops(stripped).found
        single = tf.saved_model.load(stripped)
        assert update(single.train) == [1 - change - 0.5 * calls] * 2


def test_export_of_keras_3_with_image_augmentation_may_contain_collectives(folder):
    """The documentation said that `export()` never needs stripping.

    With RandomFlip, Keras 3.15 exports the step of training.
    """
    image = keras.Input([4, 4, 1])
    flipped = keras.layers.RandomFlip(seed=1)(image)
    features = keras.layers.Flatten()(image)
    layers = [hvd.SyncBatchNormalization(), keras.layers.Dense(2)]
    for layer in layers:
        features = layer(features)
    inference = keras.Model(image, features)
    outputs = keras.layers.Flatten()(flipped)
    for layer in layers:
        outputs = layer(outputs)
    training = keras.Model(image, outputs)
    if hvd.rank() == 0:
        for name, model in (("training", training), ("inference", inference)):
            model.export(f"{folder}/{name}", verbose=False)
        assert not find_ops(f"{folder}/inference").found
        if find_ops(f"{folder}/training").found:  # depends on the version of Keras
            with pytest.raises(
                StripError, match=r"export it without augmentation layers .*--assume"
            ):
                strip_ops(f"{folder}/training", f"{folder}/stripped")
        else:
            assert tuple(map(int, keras.__version__.split(".")[:2])) != (3, 15)
    hvd.barrier()
