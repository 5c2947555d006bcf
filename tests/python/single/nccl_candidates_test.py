"""Where NCCL is looked for in a Python environment."""

import importlib
import sys

import pytest

from tf_hvd.core import _native, basics

NCCL = "nvidia/nccl/lib/libnccl.so.2"


@pytest.fixture
def place(monkeypatch):
    """Makes NCCL's file; nothing but what a test makes is there."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in [name for name in sys.modules if name.partition(".")[0] == "nvidia"]:
        monkeypatch.delitem(sys.modules, name)

    def make(folder, name=NCCL):
        file = folder / name
        file.parent.mkdir(parents=True)
        file.touch()
        importlib.invalidate_caches()
        return str(file)

    yield make
    for name in [name for name in sys.modules if name.partition(".")[0] == "nvidia"]:
        del sys.modules[name]


def test_any_folder_that_python_looks_into(place, tmp_path):
    """As of a user's own packages, beside those of the system."""
    before = basics.nccl_candidates()
    file = place(tmp_path / "user")
    assert basics.nccl_candidates() == before
    sys.path.append(str(tmp_path / "user"))
    assert basics.nccl_candidates() == [*before, file]


def test_other_wheels_of_nvidias_lie_elsewhere(place, tmp_path):
    (tmp_path / "system/nvidia/cublas").mkdir(parents=True)
    file = place(tmp_path / "user")
    sys.path[:0] = [str(tmp_path / "system"), str(tmp_path / "user")]
    assert file in basics.nccl_candidates()


def test_tensorflows_is_the_first(place, tmp_path, monkeypatch):
    ours = place(tmp_path / "ours")
    theirs = place(tmp_path / "theirs")
    monkeypatch.setattr(_native, "DIRECTORY", tmp_path / "ours" / "tf_hvd")
    monkeypatch.setattr(
        basics, "_places", lambda name: [str(tmp_path / "theirs" / name)] * (name == "tensorflow")
    )
    assert basics.nccl_candidates()[:2] == [theirs, ours]


def test_condas(place, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert place(tmp_path, "lib/libnccl.so.2") in basics.nccl_candidates()
