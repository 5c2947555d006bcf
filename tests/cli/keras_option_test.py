"""`tf_hvd run --keras`: scripts for keras.distribution, unchanged."""

import os
import sys

import pytest

pytestmark = pytest.mark.one_mpi

SCRIPT = """
import subprocess
import sys
import keras
import numpy as np

keras.distribution.initialize()
keras.distribution.set_distribution(keras.distribution.DataParallel())
model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones([6, 2]), np.ones([6, 1]), batch_size=3, verbose=0)
child = "import sys, keras; print('tf_hvd' in sys.modules)"
found = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True)
print(keras.distribution.list_devices("cpu"), "in a child:", found.stdout.strip())
"""


def test_script_runs_unchanged(call, environ, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py"]
    code, output, errors = call(
        "run", "-np", "2", "--keras", "--require-init", *command, environ=environ
    )
    assert code == 0, output + errors
    assert output.count("['cpu:0', 'cpu:1'] in a child: False") == 2


@pytest.mark.parametrize("option", ["-I", "-E", "-IB"])
def test_options_that_ignore_pythonpath(option, call, environ):
    code, _, errors = call(
        "run", "-np", "2", "--keras", sys.executable, option, "x.py", environ=environ
    )
    assert code == 2
    assert f"which Python's option -{option.strip('-B')} ignores: remove it" in errors


def test_other_backend(call, environ, tmp_path):
    """A stand-in for Keras with JAX, which is not installed here."""
    (tmp_path / "keras").mkdir()
    (tmp_path / "keras" / "__init__.py").write_text(
        "class backend:\n    backend = staticmethod(lambda: 'jax')\n"
    )
    command = [sys.executable, "-c", "import keras"]
    path = {**environ, "PYTHONPATH": str(tmp_path)}
    code, _, errors = call("run", "-np", "1", "--keras", *command, environ=path)
    assert code != 0
    assert "Keras is configured for jax: set KERAS_BACKEND=tensorflow" in errors


def test_callers_pythonpath_is_kept(call, environ, program):
    show = program("import keras\nsay(os.environ['PYTHONPATH'])")
    code, output, errors = call(
        *("run", "-np", "1", "--keras", "--as-horovod", *show),
        environ={**environ, "PYTHONPATH": "/else/where"},
    )
    assert code == 0, errors
    ours, theirs = output.strip().split(os.pathsep)
    assert ours.endswith("_as_horovod")
    assert theirs == "/else/where"


def test_program_without_a_distribution(call, environ, program):
    apart = program("import tensorflow as tf\ntf.constant(1)")
    code, _, errors = call("run", "-np", "2", "--keras", "--require-init", *apart, environ=environ)
    assert code != 0
    assert "The program set no Keras distribution, in spite of --keras" in errors
