"""Metrics of Keras 3 and tf_keras: their sums over ranks give the results of one process."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from tf_hvd.keras import compat

LIBRARIES = [keras, tf_keras]
CLASSES, ROWS = 3, 12
# Metrics that do not compute results.
ABSTRACT = {"Metric", "PyMetric"}


def classes(library):
    known = inspect.getmembers(library.metrics, inspect.isclass)
    return [kind for name, kind in known if name not in ABSTRACT]


ALL = [
    pytest.param(library, kind, id=f"{library.__name__}.{kind.__name__}")
    for library in LIBRARIES
    for kind in classes(library)
]


def make(library, kind):
    """Makes a metric of this class, and its inputs: targets and predictions."""
    random = np.random.default_rng(0)
    scores = random.uniform(0.05, 0.95, size=(ROWS, CLASSES)).astype("float32")
    scores /= scores.sum(axis=1, keepdims=True)
    labels = random.integers(0, CLASSES, size=ROWS)
    one_hot = np.eye(CLASSES, dtype="float32")[labels]
    name = kind.__name__
    if name.startswith("Sparse"):
        return kind(), (labels.astype("float32"), scores)
    if name in ("Sum", "Mean", "MeanTensor"):
        given = np.stack(np.split(scores, 6)) if name == "MeanTensor" else scores
        return kind(), (given,)
    if name.startswith("MeanMetricWrapper"):
        return kind(library.losses.mean_squared_error), (one_hot, scores)
    if name == "MeanRelativeError":
        return kind(normalizer=np.float32([1, 2, 3])), (one_hot, scores)
    if name in ("IoU", "MeanIoU"):
        targets = {"target_class_ids": [0, 2]} if name == "IoU" else {}
        return kind(num_classes=CLASSES, **targets), (labels, scores.argmax(axis=1))
    if name in ("OneHotIoU", "OneHotMeanIoU"):
        targets = {"target_class_ids": [0, 2]} if name == "OneHotIoU" else {}
        return kind(num_classes=CLASSES, **targets), (one_hot, scores)
    if name == "BinaryIoU":
        return kind(target_class_ids=[0, 1], threshold=0.3), (one_hot, scores)
    if name == "Accuracy":
        return kind(), (labels, scores.argmax(axis=1))
    if "At" in name:
        return kind(0.5), (one_hot, scores)
    return kind(), (one_hot, scores)


def assign(metric, values):
    for variable, value in zip(metric.variables, values, strict=True):
        variable.assign(tf.cast(value, variable.dtype))


@pytest.mark.parametrize(("library", "kind"), ALL)
def test_sums_of_parts_equal_the_whole(library, kind):
    """For two uneven parts of the samples; covers each class that `compat.adds_up` accepts."""
    metric, given = make(library, kind)
    assert compat.adds_up(metric)
    cut = 4 if len(given[0]) == 6 else 7

    def state(rows):
        metric.reset_state()
        for batch in rows:
            metric.update_state(*(each[batch] for each in given))
        return [np.asarray(v, np.float64) for v in metric.variables]

    if kind.__name__ == "MeanTensor":
        parts = [state(range(cut)), state(range(cut, 6))]
        state(range(6))
    else:
        parts = [state([slice(0, cut)]), state([slice(cut, ROWS)])]
        state([slice(0, ROWS)])
    whole = np.asarray(metric.result())
    assert np.all(np.isfinite(whole))
    assert np.any(whole != 0)
    assert parts[0]
    assign(metric, [a + b for a, b in zip(*parts, strict=True)])
    np.testing.assert_allclose(np.asarray(metric.result()), whole, rtol=1e-5, atol=1e-6)


def test_class_names_exist_in_keras():
    """A name that no Keras uses any longer could match another class."""
    found = {
        base.__name__ for library in LIBRARIES for kind in classes(library) for base in kind.__mro__
    }
    assert compat.ADDING - found == {"SumOverBatchSizeMetricWrapper"}
    assert hasattr(tf_keras.src.metrics.base_metric, "SumOverBatchSizeMetricWrapper")


@pytest.fixture(params=LIBRARIES, ids=lambda library: library.__name__)
def library(request):
    return request.param


def test_users_classes(library):
    kinds = library.metrics

    class OtherArguments(kinds.Mean):
        def update_state(self, y_true, y_pred, sample_weight=None):
            return super().update_state(y_true - y_pred, sample_weight)

    class OtherResult(kinds.MeanSquaredError):
        def result(self):
            return super().result() ** 0.5

    class Largest(kinds.Metric):
        def __init__(self):
            super().__init__()
            self.largest = self.add_weight(shape=(), initializer="zeros", name="largest")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.largest.assign(tf.maximum(self.largest, tf.reduce_max(y_pred)))

        def result(self):
            return self.largest + 0

    class Median(kinds.Mean):
        def update_state(self, y_true, y_pred, sample_weight=None):
            self.seen = y_pred

        def result(self):
            return np.median(self.seen)

    class SaysSo(Largest):
        hvd_sums = True

    class F1(kinds.Metric):
        def __init__(self, *inside):
            super().__init__()
            self.precision, self.recall = kinds.Precision(), kinds.Recall()
            self.inside = list(inside)

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.precision.update_state(y_true, y_pred)
            self.recall.update_state(y_true, y_pred)

        def result(self):
            return self.precision.result() + self.recall.result()

    assert compat.adds_up(OtherArguments())
    assert compat.adds_up(OtherResult())
    assert compat.adds_up(SaysSo())
    assert compat.adds_up(F1())
    assert not compat.adds_up(Largest())
    assert not compat.adds_up(Median())
    known = F1()
    known.third = Largest()
    assert not compat.adds_up(known)
