"""The flight recorders' information at a job's end and while it runs."""

import json
import re
import signal
import stat
import subprocess
import sys
import time

import pytest
from finished import finished

COMMAND = [sys.executable, "-m", "tf_hvd_command"]
START = """
import tensorflow as tf
import tf_hvd as hvd
hvd.init()
for number in range(3):
    hvd.allreduce(tf.ones([3]), name=f"grad_{number}")
"""
KILLED = (
    START
    + """
if hvd.rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
hvd.allreduce(tf.ones([3]), name="grad_3")
"""
)
RAISES = (
    START
    + """
if hvd.rank() == 1:
    raise ValueError("sample 17 is \\x1b[31mbroken")
hvd.allreduce(tf.ones([3]), name="grad_3")
"""
)
CANNOT_BE_SAID = (
    START
    + """
class Odd(ValueError):
    def __str__(self):
        return self.text

if hvd.rank() == 1:
    raise Odd
hvd.allreduce(tf.ones([3]), name="grad_3")
"""
)
DISAGREES = START + 'hvd.allreduce(tf.ones([3 + hvd.rank()]), name="grad_3")\n'


def doctor(*words):
    done = finished([*COMMAND, "doctor", *map(str, words)])
    return done.returncode, done.stdout, done.stderr


def told(output):
    """The sentence about collective calls in the closing paragraph."""
    found = re.search(r"^  calls: (.*(?:\n         .*)*)", output, re.MULTILINE)
    return re.sub(r"\s+", " ", found[1]) if found else ""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            KILLED,
            r"rank 1 was killed by signal 9 \(SIGKILL\); its last call, number 4, was allreduce "
            r"'grad_2' \(.*program\.py:10\); ranks 0 and 2 waited for it in allreduce 'grad_3' "
            r"\(.*program\.py:14\)",
        ),
        pytest.param(
            RAISES,
            r"rank 1 left the job(: ValueError: sample 17 is \\x1b\[31mbroken)?; its last call, "
            r"number 4, was allreduce 'grad_2' \(.*:10\); ranks 0 and 2 waited for it in allreduce "
            r"'grad_3' .*",
            marks=pytest.mark.one_mpi,
        ),
        pytest.param(
            CANNOT_BE_SAID,
            r"rank 1 left the job(: Odd: <exception str\(\) failed>)?; its last call, .*",
            marks=pytest.mark.one_mpi,
        ),
        pytest.param(
            DISAGREES,
            r"the ranks disagree from call 5 on, allreduce 'grad_3' \(.*:11\): .*float32\[3\].*",
            marks=pytest.mark.one_mpi,
        ),
    ],
    ids=["killed", "raises", "cannot_be_said", "disagrees"],
)
def test_closing_paragraph_and_dump(environ, program, tmp_path, text, sentence):
    dumps = tmp_path / "dumps"
    job = finished(
        [*COMMAND, "run", "-np", "3", *program(text)],
        env={**environ, "TF_HVD_DUMP_DIR": str(dumps)},
    )
    assert job.returncode, job.stderr
    paragraph = job.stderr[job.stderr.index("tf_hvd run: the job ended") :]
    found = re.fullmatch(sentence, told(paragraph))
    assert found, job.stderr
    assert not any(found.groups()), "the previous line has it"
    assert "\x1b" not in paragraph
    (folder,) = dumps.iterdir()
    assert f"more:  tf_hvd doctor {folder}" in re.sub(r"\s+", " ", job.stderr).replace(
        "more: ", "more:  "
    )
    assert sorted(file.name for file in folder.iterdir()) == [
        "ends.json", "rank.0", "rank.1", "rank.2",
    ]  # fmt: skip
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "rank.1").stat().st_mode) == 0o600
    code, page, _ = doctor(dumps)
    assert code == 0
    found = re.match(sentence, page.splitlines()[0])
    assert found, page
    assert all(found.groups())
    code, report, _ = doctor("--json", folder)
    found = json.loads(report)
    assert 1 in found["ranks"]
    # Also without the recording of that rank.
    (folder / "rank.1").unlink()
    _, page, _ = doctor(folder)
    assert "rank 1" in page.splitlines()[0] or "disagree" in page.splitlines()[0], page
    assert "no recording of rank 1" in page


@pytest.mark.one_mpi
def test_successful_job_leaves_no_dump(environ, program, tmp_path):
    job = finished(
        [*COMMAND, "run", "-np", "2", *program(START)],
        env={**environ, "TF_HVD_DUMP_DIR": str(tmp_path / "dumps")},
    )
    assert job.returncode == 0, job.stderr
    assert not (tmp_path / "dumps").exists()


@pytest.mark.one_mpi
def test_unwritable_dump_is_reported(environ, program, tmp_path):
    (tmp_path / "dumps").write_text("no folder")
    job = finished(
        [*COMMAND, "run", "-np", "2", *program(KILLED)],
        env={**environ, "TF_HVD_DUMP_DIR": str(tmp_path / "dumps")},
    )
    assert "the recordings could not be saved: " in re.sub(r"\s+", " ", job.stderr), job.stderr
    assert told(job.stderr).startswith("rank 1 ")


CAUGHT = (
    START
    + """
if hvd.rank() == 1:
    time.sleep(20)
else:
    try:
        hvd.allreduce(tf.ones([3]), name="grad_3")
    except Exception as error:
        say("caught", type(error).__name__)
"""
)


@pytest.mark.one_mpi
def test_stall_caught_by_the_program(environ, program, closing):
    """The message was "rank 1 was the first to end with an error (signal 15)", exit code 143."""
    job = finished(
        [*COMMAND, "run", "-np", "2", *program(CAUGHT)],
        env={
            **environ,
            "HOROVOD_STALL_CHECK_TIME_SECONDS": "1",
            "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "3",
        },
    )
    assert "caught UnknownError" in job.stdout
    assert job.returncode == 1
    parts = closing(job.stderr)
    assert re.match(
        r"the job had already ended: stall: 'grad_3' \(world\) waited \d+ s: submitted by "
        r"rank 0 .*; missing rank 1 ",
        parts["what"],
    ), job.stderr
    assert parts["calls"].startswith("rank 1 never called allreduce 'grad_3' (")
    assert parts["next"].startswith("rank 0 caught the error and continued")


HANGS = (
    START
    + """
say("here")
sys.stdout.flush()
if hvd.rank() == 1:
    time.sleep(1000)
hvd.allreduce(tf.ones([3]), name="grad_3")
"""
)


def test_dump_of_a_hanging_job(environ, program, tmp_path):
    output = tmp_path / "output"
    with output.open("w") as file:
        job = subprocess.Popen(
            [*COMMAND, "run", "-np", "2", *program(HANGS)],
            env={**environ, "TF_HVD_DUMP_DIR": str(tmp_path / "asked")},
            stdout=file,
            stderr=file,
        )
    try:
        deadline = time.monotonic() + 120
        while output.read_text().count("here") < 2:
            assert job.poll() is None, output.read_text()
            assert time.monotonic() < deadline, output.read_text()
            time.sleep(0.1)
        page = ""
        while "waiting: 0" not in page:
            assert time.monotonic() < deadline, page
            dumped = finished([*COMMAND, "dump", str(job.pid), "--to", str(tmp_path / "dumps")])
            assert dumped.returncode == 0, dumped.stderr
            assert "2 of 2 ranks of job tf_hvd-" in dumped.stderr
            _, page, _ = doctor(dumped.stdout.strip())
        assert re.match(
            r"rank 1 has not called allreduce 'grad_3' \(.*:16\), in which rank 0 waits; its last "
            r"call, number 4, was allreduce 'grad_2'",
            page,
        )
        assert page.count("; still running") == 2, page
    finally:
        job.send_signal(signal.SIGINT)
        job.wait(60)
    # A job ended by Ctrl-C is not a failure, but its recordings are saved.
    (folder,) = (tmp_path / "asked").iterdir()
    assert f"to see the ranks' last calls, run: tf_hvd doctor {folder}" in output.read_text()
    assert doctor(folder)[0] == 0


def test_missing_recordings_and_jobs(tmp_path):
    code, _, error = doctor(tmp_path)
    assert code == 2
    assert "has no recordings (no files named rank.N)" in error
    (tmp_path / "rank.0").write_text("?")
    code, _, error = doctor(tmp_path)
    assert code == 2
    assert "rank.0: the file is truncated" in error
    with subprocess.Popen(["sleep", "600"]) as other:
        words = [*COMMAND, "dump", str(other.pid), "--to", str(tmp_path)]
        done = finished(words)
        other.kill()
    assert done.returncode == 2
    assert "is neither a rank nor the launcher of a job" in done.stderr
