"""The GPU and the threads that a rank uses; TensorFlow's own functions are replaced."""

import os
import types

import pytest
import tensorflow as tf

import tf_hvd as hvd
from tf_hvd.core import basics, devices


@pytest.fixture
def machine(monkeypatch):
    """A machine with these GPUs and 8 processors, which records requests to TensorFlow."""
    asked = types.SimpleNamespace(gpus=["a", "b", "c"], place=4, ranks=6, visible=None, grows=[])
    asked.threads = {"intra": 0, "inter": 0}
    asked.free, late = set(range(8)), {"error": None}
    asked.late = late

    def set_visible(gpus, kind):
        if late["error"]:
            raise RuntimeError(late["error"])
        assert kind == "GPU"
        asked.visible = gpus

    monkeypatch.setattr(basics, "local_rank", lambda: asked.place)
    monkeypatch.setattr(basics, "local_size", lambda: asked.ranks)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: asked.gpus)
    monkeypatch.setattr(tf.config, "set_visible_devices", set_visible)
    monkeypatch.setattr(
        tf.config.experimental, "set_memory_growth", lambda gpu, on: asked.grows.append((gpu, on))
    )
    for which in ("intra", "inter"):
        name = f"{which}_op_parallelism_threads"
        monkeypatch.setattr(
            devices._THREADING, f"get_{name}", lambda which=which: asked.threads[which]
        )
        monkeypatch.setattr(
            devices._THREADING,
            f"set_{name}",
            lambda count, which=which: asked.threads.update({which: count}),
        )
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: asked.free)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
        monkeypatch.delenv(name, raising=False)
    return asked


def test_each_rank_gets_the_gpu_of_its_local_rank(machine):
    hvd.pin_gpu()
    assert machine.visible == ["b"]  # the fifth rank on a machine with three GPUs
    assert machine.grows == [("b", True)]


def test_the_only_visible_gpu_is_kept(machine):
    machine.gpus = ["a"]
    hvd.pin_gpu()
    assert machine.visible is None
    assert machine.grows == [("a", True)]


def test_without_a_gpu_the_processors_are_shared(machine):
    machine.gpus, machine.ranks = [], 3
    hvd.pin_gpu()
    assert (machine.visible, machine.grows) == (None, [])
    assert machine.threads == {"intra": 2, "inter": 2}


@pytest.mark.parametrize("why", ["bound", "alone", "set", "variable"])
def test_thread_counts_that_are_already_set_are_kept(machine, monkeypatch, why):
    before = {"intra": 3, "inter": 3} if why == "set" else {"intra": 0, "inter": 0}
    machine.threads = dict(before)
    if why == "bound":
        machine.free = {0, 1}
    elif why == "alone":
        machine.ranks = 1
    elif why == "variable":
        monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "1")
        monkeypatch.setenv("TF_NUM_INTEROP_THREADS", "1")
    hvd.pin_gpu()
    assert machine.threads == before


def test_pin_gpu_after_tensorflow_started_is_an_error(machine):
    machine.late["error"] = "Visible devices cannot be modified after being initialized"
    with pytest.raises(RuntimeError, match=r"too late \(Visible .*directly after hvd.init\(\)"):
        hvd.pin_gpu()


def test_pin_gpu_too_late_for_threads_only_is_a_warning(machine, monkeypatch):
    """Otherwise it would be an error on machines with more ranks than the launcher binds."""

    def too_late(_):
        raise RuntimeError("Intra op parallelism cannot be modified")

    machine.gpus = []
    monkeypatch.setattr(devices._THREADING, "set_intra_op_parallelism_threads", too_late)
    told = []
    monkeypatch.setattr(devices.log, "warning", lambda text, *values: told.append(text % values))
    hvd.pin_gpu()
    assert told == [
        "pin_gpu() was called too late to set TensorFlow's threads: "
        "Intra op parallelism cannot be modified"
    ]


def test_before_init(monkeypatch):
    def missing():
        raise hvd.NotInitializedError("call hvd.init() first")

    monkeypatch.setattr(basics, "local_rank", missing)
    with pytest.raises(hvd.NotInitializedError):
        hvd.pin_gpu()
