"""The engine of a single rank at the beginning and the end of an elastic training."""

import types

import numpy as np
import pytest
import tensorflow as tf

from tf_hvd.core import basics, contract
from tf_hvd.elastic import commits, running, state
from tf_hvd.elastic import engine as engines


class Quiet:
    """An engine that records the calls of a training run."""

    def __init__(self, _store=None):
        self.asked = []
        made.append(self)

    def __getattr__(self, name):
        return lambda *_: self.asked.append(name)


made = []


@pytest.fixture
def trained(monkeypatch):
    """Calls a function as an elastic training; returns the engines that were created."""
    made.clear()
    monkeypatch.setattr(running, "open_store", object)
    monkeypatch.setattr(running, "_has_trained", False)
    monkeypatch.setattr(engines, "Engine", Quiet)
    nothing = types.SimpleNamespace(start=lambda _engine: None)
    return lambda function: running.run(function)(nothing)


def test_second_training_is_refused(trained):
    """It silently continued from the last commit of the first training."""
    assert trained(lambda _state: 7) == 7
    with pytest.raises(RuntimeError, match="only one elastic training"):
        trained(lambda _state: 8)
    assert [each.asked for each in made] == [["finish"]]


def test_signal_handlers_are_restored_after_an_exception(trained):
    def fails(_state):
        raise ValueError("sample 17")

    with pytest.raises(ValueError, match="sample 17"):
        trained(fails)
    assert [each.asked for each in made] == [["stop_listening"]]


def test_rank_may_end_while_searching_for_commits(monkeypatch):
    """It ended with an AssertionError, and was named instead of the dead rank."""
    told = []
    monkeypatch.setattr(basics, "ends_by", lambda error, _trace: told.append(error))
    engine = engines.Engine(None)
    died = RuntimeError("rank 1 (alpha) died")
    with pytest.raises(SystemExit) as ended:
        engine.leave_for(died)
    engine.stop_listening()
    assert ended.value.code == contract.START_AGAIN
    assert told == [died]


def test_unchanged_statistics_survive_two_restarts():
    """After the second restart the rank had the statistics of its node's first rank."""
    model = tf.keras.Sequential([tf.keras.Input([2]), tf.keras.layers.BatchNormalization()])
    kept = state.TensorFlowKerasState(model, step=3)
    begun = {}
    values = {name: np.asarray(each) for name, each in kept._variables().all.items()}
    mean = next(name for name in values if "moving_mean" in name)
    own = {"arrays": {mean: np.array([5.0, 6.0], np.float32)}}
    restored = engines.Restored(kept._pickled(), values, own, same_size=True)
    writer = types.SimpleNamespace(begin=begun.update, writes_file=False)
    kept.start(types.SimpleNamespace(restore=lambda: restored, writer=writer))
    assert kept._variables().all[mean].numpy().tolist() == [5.0, 6.0]
    assert set(begun) == {name for name in values if "moving_var" in name}


def test_values_of_rank_0_survive_its_machine(store, monkeypatch):
    """The values in another node's file, of that node's first rank, were used."""
    for name, value in (("rank", 0), ("size", 1), ("local_rank", 1), ("cross_size", 2)):
        monkeypatch.setattr(basics, name, lambda value=value: value)
    monkeypatch.setattr(engines, "allgather_object", lambda value, name: [value])
    monkeypatch.setattr(engines, "broadcast_object", lambda value, _root, name: value)
    weight = {"w": np.ones([3], np.float32)}
    engine = engines.Engine(store)
    engine._writer = commits.Writer(store, 0, 1, 0)
    engine.commit(commits.Contents(b"of rank 0", weight, {}))
    engine.writer.flush()
    # As if only the other node's file existed.
    file = commits.commit_file.CommitFile(store.file("commit.0.0"))
    file.write(1, 1, {"w": np.full([3], 2.0, np.float32)})
    again = engines.Engine(store)
    restored, last = again._newest()
    for each in (engine, again):
        each.stop_listening()
    assert (restored.objects, last) == (b"of rank 0", 1)
    assert restored.arrays["w"].view(np.float32).tolist() == [2.0] * 3


@pytest.mark.parametrize("other_machine", [True, False])
def test_commit_memory_is_named_by_place_on_the_machine(store, monkeypatch, other_machine):
    """Memory named by the node's number stayed unused after a start with other numbers."""
    for name, value in (("rank", 1), ("size", 2), ("local_rank", 0)):
        monkeypatch.setattr(basics, name, lambda value=value: value)

    def gathered(mine, name):
        return [(0, True) if other_machine else mine, mine]

    monkeypatch.setattr(engines, "allgather_object", gathered)
    engine = engines.Engine(store)
    engine._begin(0)
    engine.stop_listening()
    place = 0 if other_machine else 1  # ranks that count as different machines
    assert f"commit.{place}.0" in store.inventory()[1]
    assert f"commit.{1 - place}.0" not in store.inventory()[1]
