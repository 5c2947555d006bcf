"""The guard is installed whichever finder finds Keras, and whenever Keras is imported."""

import sys

from finished import finished

# An editable installation adds its own finder, here before Python's.
PROGRAM = """
import importlib.util, pathlib, sys

root = pathlib.Path(sys.argv[1])

class Editable:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "tf_keras":
            return importlib.util.spec_from_file_location(name, root / "__init__.py")

sys.meta_path.insert(0, Editable)
import tf_hvd.keras
import tensorflow

assert "tf_keras" not in sys.modules, "imported too early for this test"
try:
    import tf_keras
except ImportError as error:
    print("error:", error)
print("keras patched:", hasattr(__import__("keras").Model.fit, "_tf_hvd_watched"))
"""
LIBRARY = """
import types

__version__ = "99.0"
empty = type("Empty", (), {})
legacy = types.SimpleNamespace(Optimizer=empty, SGD=empty)
optimizers = types.SimpleNamespace(Optimizer=empty, SGD=empty, legacy=legacy)
kinds = ("CallbackList", "ModelCheckpoint", "ProgbarLogger", "BackupAndRestore")
callbacks = types.SimpleNamespace(**dict.fromkeys(kinds, empty))
layers = types.SimpleNamespace(BatchNormalization=empty)
Model = empty
"""


def test_editable_keras(tmp_path):
    """The error about missing hooks shows that tf_hvd tried to hook into this library."""
    (tmp_path / "editable").mkdir()
    (tmp_path / "editable" / "__init__.py").write_text(LIBRARY)
    (tmp_path / "program.py").write_text(PROGRAM)
    done = finished(
        [sys.executable, "-P", str(tmp_path / "program.py"), str(tmp_path / "editable")]
    )
    assert "cannot hook into tf_keras 99.0, which does not have " in done.stdout, done.stderr
    assert " Empty.apply_gradients" in done.stdout
    assert "keras patched: True" in done.stdout
