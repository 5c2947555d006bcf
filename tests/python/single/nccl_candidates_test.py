"""The places where NCCL is searched in a Python environment."""

import importlib
import sys

import pytest

from tf_hvd.core import _native, basics

NCCL = "nvidia/nccl/lib/libnccl.so.2"


@pytest.fixture
def place(monkeypatch):
    """Creates NCCL's file in an otherwise empty environment."""
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


def test_any_folder_on_pythons_path(place, tmp_path):
    """Such as a user's own packages in addition to the system's."""
    before = basics.nccl_candidates()
    file = place(tmp_path / "user")
    assert basics.nccl_candidates() == before
    sys.path.append(str(tmp_path / "user"))
    assert basics.nccl_candidates() == [*before, file]


def test_other_nvidia_wheels_are_in_other_folders(place, tmp_path):
    (tmp_path / "system/nvidia/cublas").mkdir(parents=True)
    file = place(tmp_path / "user")
    sys.path[:0] = [str(tmp_path / "system"), str(tmp_path / "user")]
    assert file in basics.nccl_candidates()


def test_tensorflows_nccl_comes_first(place, tmp_path, monkeypatch):
    ours = place(tmp_path / "ours")
    theirs = place(tmp_path / "theirs")
    monkeypatch.setattr(_native, "DIRECTORY", tmp_path / "ours" / "tf_hvd")
    monkeypatch.setattr(
        basics,
        "_package_folders",
        lambda name: [str(tmp_path / "theirs" / name)] * (name == "tensorflow"),
    )
    assert basics.nccl_candidates()[:2] == [theirs, ours]


def test_nccl_of_conda(place, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert place(tmp_path, "lib/libnccl.so.2") in basics.nccl_candidates()
