"""The calls of Keras' guide to distributed training, on 4 ranks.

The guide is keras.io/guides/distribution. Its part on data parallelism must give the results of one
process, and its part on model parallelism must end with an error.
"""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

PROGRAM = pathlib.Path(__file__).resolve().parent / "guide_program.py"
RANKS, LIMIT = 4, 240

pytestmark = [pytest.mark.usefixtures("usual_garbage"), pytest.mark.tier2]


def test_guide(run_to_end, mpi_library, tmp_path):
    environ = {name: text for name, text in os.environ.items() if name != "PYTHONSAFEPATH"}
    plain = [sys.executable, PROGRAM, tmp_path / "expected", "--one-process"]
    subprocess.run(plain, env=environ, cwd="/", check=True, timeout=LIMIT, capture_output=True)
    environ["TF_HVD_MPI_LIBRARY"] = str(mpi_library("openmpi"))
    command = [sys.executable, "-m", "tf_hvd_command", "run", "--keras", "-np", str(RANKS)]
    command += [sys.executable, str(PROGRAM), str(tmp_path / "found")]
    code, output = run_to_end(command, environ, LIMIT, cwd="/")
    expected = dict(np.load(tmp_path / "expected.npz"))
    assert expected["val_accuracy"][-1] > expected["val_accuracy"][0]
    for rank in range(RANKS):
        found = dict(np.load(tmp_path / f"found.{rank}.npz"))
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            np.testing.assert_allclose(
                found[name], values, rtol=1e-10, atol=1e-13, err_msg=f"{name} on rank {rank}"
            )
    assert code == 1, output
    assert "NotImplementedError: keras.distribution: the layout map shards d1/kernel" in output
