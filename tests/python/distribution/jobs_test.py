"""Jobs under keras.distribution: elastic, with a timeline, and with ranks that fail."""

import re

import numpy as np
import pytest

from tf_hvd.observe import trace_reader

STEP = "keras.distribution_Allreduce/bucket_0"

pytestmark = [pytest.mark.usefixtures("usual_garbage"), pytest.mark.tier2]


def in_one_line(text):
    return " ".join(text.split())


def test_elastic_fit_has_the_results_of_one_process(run_job, run_plain, tmp_path):
    """Although the number of ranks changes in the middle of two epochs, to 1 and back to 2."""
    run_plain("elastic_fit.py", tmp_path / "expected", "--one-process")
    expected = dict(np.load(tmp_path / "expected.0.npz"))
    script = tmp_path / "discover"
    script.write_text(f"#!/bin/sh\ncat {tmp_path}/hosts\n")
    script.chmod(0o755)
    (tmp_path / "hosts").write_text("localhost:2\n")
    options = ["--keras", "-np", "2", "--min-np", "1", "--host-discovery-script", str(script)]
    settings = {"FLAGS": str(tmp_path), "KILLS": "1.4:1:1 2.6:0:2"}
    code, output = run_job(options, "elastic_fit.py", str(tmp_path / "found"), **settings)
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


def test_timeline_and_report_of_a_killed_rank(run_job, tmp_path):
    options = ["--keras", "-np", "2", "--timeline", str(tmp_path / "job.json")]
    code, output = run_job(options, "watched_jobs.py", "killed")
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


def test_predict_on_one_rank_only(run_job):
    """The stall warning names the other rank; when that rank ends, the error does."""
    settings = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1"}
    code, output = run_job(["--keras", "-np", "2"], "watched_jobs.py", "alone", **settings)
    assert code == 1, output
    said = in_one_line(output)
    assert "rank 0 waited for it in allgather 'predictions_data'" in said
    assert "rank 1 reached the end of its program before rank 0 did" in said


def test_weights_that_differ_between_ranks(run_job):
    code, output = run_job(["--keras", "-np", "2"], "watched_jobs.py", "differing")
    assert code == 1, output
    said = in_one_line(output)
    assert "RanksDifferError" in said
    assert "first in sequential/dense/bias: rank 1 differs from rank 0" in said


def test_script_for_the_distribution_without_the_option(run_job, tmp_path):
    """Keras' TensorFlow backend cannot initialize; its AttributeError does not help a user."""
    script = tmp_path / "script.py"
    script.write_text("import keras\nkeras.distribution.initialize()\n")
    code, output = run_job(["-np", "2"], str(script), KERAS_BACKEND="tensorflow")
    assert code == 1, output
    assert "the program uses keras.distribution: add --keras" in output
