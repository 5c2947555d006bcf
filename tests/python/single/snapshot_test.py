"""A rank's own state, collected and restored."""

import logging
import random

import numpy as np
import pytest
import tensorflow as tf

from tf_hvd.training.aggregation import GradientAggregation
from tf_hvd.training.snapshot import Snapshot


def test_random_numbers_continue_after_a_restore():
    generator = tf.random.Generator.from_seed(3)
    snapshot = Snapshot(lambda: {"own": generator.state})

    def draw():
        return random.random(), np.random.rand(), float(generator.uniform(()))

    taken = snapshot.random_numbers()
    drawn = draw()
    snapshot.restore_random_numbers({})  # of a rank that did not exist before
    assert draw() != drawn
    snapshot.restore_random_numbers(taken)
    assert draw() == drawn


def test_parts_registered_later_are_restored():
    got = []
    snapshot = Snapshot()
    snapshot.restore({"here": 1, "late": 2, "unknown": 3})
    for name in ("late", "here"):
        snapshot.follow(name, lambda: "now", got.append)
    assert got == [2, 1]
    assert snapshot.collect() == {"late": "now", "here": "now"}
    snapshot.restore({"late": 4})
    assert got == [2, 1, 4]


def test_parts_of_another_number_of_ranks_are_merged():
    got = []
    snapshot = Snapshot()
    snapshot.restore_resized([{"here": 1, "late": 2, "plain": 3}, {"here": 10, "late": 20}])
    snapshot.follow("plain", lambda: "now", got.append)
    for name in ("here", "late"):
        snapshot.follow(name, lambda: "now", got.append, sum)
        snapshot.follow(name, lambda: "now", got.append, sum)  # only once
    assert got == [11, 22]
    snapshot.follow("other", lambda: "now", got.append, lambda parts: None)
    snapshot.restore_resized([{"here": 4, "other": 5}])
    assert got == [11, 22, 4]


def test_passes_of_an_incomplete_update():
    variable = tf.Variable([0.0, 0.0])

    def add(aggregation, value):
        complete, sums = aggregation.add([tf.fill([2], value)], [variable])
        return bool(complete), sums[0].numpy().tolist()

    first, second = GradientAggregation(3), GradientAggregation(3)
    add(first, 1.0)
    add(first, 2.0)
    taken = Snapshot(aggregations=lambda: [first]).collect()
    Snapshot(aggregations=lambda: [second]).restore({})  # of a file from before this part existed
    Snapshot(aggregations=lambda: [second]).restore(taken)
    assert add(second, 4.0) == add(first, 4.0) == (True, [7.0, 7.0])


@pytest.mark.parametrize("passes", [0, 1])
def test_passes_added_after_the_snapshot_are_discarded(passes):
    variable = tf.Variable([0.0])
    aggregation = GradientAggregation(3)
    for _ in range(passes):
        aggregation.add([tf.constant([1.0])], [variable])
    snapshot = Snapshot(aggregations=lambda: [aggregation])
    taken = snapshot.collect()
    aggregation.add([tf.constant([100.0])], [variable])
    snapshot.restore(taken)
    for _ in range(3 - passes):
        complete, sums = aggregation.add([tf.constant([1.0])], [variable])
    assert (bool(complete), sums[0].numpy().tolist()) == (True, [3.0])


def test_passes_of_other_gradients_are_ignored(caplog):
    caplog.set_level(logging.WARNING, "absl")
    taken, variable = {"count": 1, "sums": [np.ones([2]), np.ones([1])]}, tf.Variable([0.0])
    aggregation = GradientAggregation(2)
    Snapshot(aggregations=lambda: [aggregation]).restore({"passes": [[taken]]})
    complete, _ = aggregation.add([tf.constant([1.0])], [variable])
    assert not complete
    assert "do not have the shapes of this" in caplog.text
