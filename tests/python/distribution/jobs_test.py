"""Jobs under keras.distribution: elastic, with a timeline, and with ranks that fail."""

import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

from tf_hvd.observe import trace_reader

HERE = pathlib.Path(__file__).resolve().parent
LIMIT = 240
STEP = "keras.distribution_Allreduce/bucket_0"

pytestmark = [pytest.mark.usefixtures("usual_garbage"), pytest.mark.tier2]


@pytest.fixture
def job(run_to_end, mpi_library):
    """Runs a program of this folder with `tf_hvd run --keras`; returns exit code and output."""

    def run(options, program, *arguments, **settings):
        environ = {name: text for name, text in os.environ.items() if name != "PYTHONSAFEPATH"}
        environ |= {"TF_HVD_MPI_LIBRARY": str(mpi_library("openmpi")), **settings}
        command = [sys.executable, "-m", "tf_hvd_command", "run", *options, sys.executable]
        return run_to_end([*command, str(HERE / program), *arguments], environ, LIMIT, cwd="/")

    return run


def in_one_line(text):
    return " ".join(text.split())


def test_elastic_fit_has_the_results_of_one_process(job, tmp_path):
    """Although the number of ranks changes in the middle of two epochs, to 1 and back to 2."""
    plain = [sys.executable, HERE / "elastic_fit.py", tmp_path / "expected", "--one-process"]
    environ = {name: text for name, text in os.environ.items() if name != "PYTHONSAFEPATH"}
    subprocess.run(plain, env=environ, cwd="/", check=True, timeout=LIMIT, capture_output=True)
    expected = dict(np.load(tmp_path / "expected.0.npz"))
    script = tmp_path / "discover"
    script.write_text(f"#!/bin/sh\ncat {tmp_path}/hosts\n")
    script.chmod(0o755)
    (tmp_path / "hosts").write_text("localhost:2\n")
    options = ["--keras", "-np", "2", "--min-np", "1", "--host-discovery-script", str(script)]
    settings = {"FLAGS": str(tmp_path), "KILLS": "1.4:1:1 2.6:0:2"}
    code, output = job(options, "elastic_fit.py", str(tmp_path / "found"), **settings)
    assert code == 0, output
    begun = set(re.findall(r"from (\d+) (\d+) of (\d)", output))
    assert [sorted(ranks for epoch, _, ranks in begun if epoch == e) for e in "012"] == [
        ["2"], ["1"], ["2"]
    ], output  # fmt: skip
    assert all(int(batch) > 0 for epoch, batch, _ in begun if epoch != "0"), output
    assert "Each rank skips as many batches" not in output
    for rank in range(2):
        found = dict(np.load(tmp_path / f"found.{rank}.npz"))
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, rtol=1e-10, err_msg=name)


def test_timeline_and_report_of_a_killed_rank(job, tmp_path):
    options = ["--keras", "-np", "2", "--timeline", str(tmp_path / "job.json")]
    code, output = job(options, "watched_jobs.py", "killed")
    assert code == 137, output
    said = in_one_line(output)
    assert "rank 1 was the first to end with an error (signal 9, Killed)" in said
    assert re.search(rf"rank 0 waited for it in allreduce '\S*{STEP}' \(\S*watched_jobs.py", said)
    for name in ("job.json", "job.rank-1.json"):
        (trace,) = trace_reader.read(tmp_path / name)
        found = {span.name for spans in trace.spans.values() for span in spans}
        found |= set(trace.spans)
        for part in (STEP, "keras.distribution: results of fit or evaluate", "predictions"):
            assert any(each.endswith(part) for each in found), (name, part, sorted(found))


def test_predict_on_one_rank_only(job):
    """The stall warning names the other rank; when that rank ends, the error does."""
    settings = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1"}
    code, output = job(["--keras", "-np", "2"], "watched_jobs.py", "alone", **settings)
    assert code == 1, output
    said = in_one_line(output)
    assert "rank 0 waited for it in allgather 'predictions_data'" in said
    assert "rank 1 reached the end of its program before rank 0 did" in said


def test_weights_that_differ_between_ranks(job):
    code, output = job(["--keras", "-np", "2"], "watched_jobs.py", "differing")
    assert code == 1, output
    said = in_one_line(output)
    assert "RanksDifferError" in said
    assert "first in sequential/dense/bias: rank 1 differs from rank 0" in said


def test_script_for_the_distribution_without_the_option(job, tmp_path):
    """Keras' TensorFlow backend cannot initialize; its AttributeError does not help a user."""
    script = tmp_path / "script.py"
    script.write_text("import keras\nkeras.distribution.initialize()\n")
    code, output = job(["-np", "2"], str(script), KERAS_BACKEND="tensorflow")
    assert code == 1, output
    assert "the program uses keras.distribution: add --keras" in output
