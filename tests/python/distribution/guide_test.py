"""The calls of Keras' guide to distributed training, on 4 ranks.

The guide is keras.io/guides/distribution. Its part on data parallelism must give the results of one
process, and its part on model parallelism must end with an error.
"""

import numpy as np
import pytest

RANKS = 4

pytestmark = [pytest.mark.usefixtures("usual_garbage"), pytest.mark.tier2]


def test_guide(run_job, run_plain, tmp_path):
    run_plain("guide_program.py", tmp_path / "expected", "--one-process")
    options = ["--keras", "-np", str(RANKS)]
    code, output = run_job(options, "guide_program.py", tmp_path / "found")
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
