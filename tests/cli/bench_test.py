"""`tf_hvd bench` as a user starts it: jobs of two ranks, small and short."""

import importlib.util
import json
import re
import sys

import pytest

from tf_hvd.launch.environment import horovod_path

SHORT = ["--repetitions", "2", "--warmup", "1", "--calls", "1"]
OPERATIONS = ["allreduce", "allgather", "broadcast", "alltoall", "reducescatter"]


@pytest.fixture
def bench(start, environ):
    """Runs `tf_hvd bench` with 2 ranks to its end: what it printed."""

    def run(*arguments):
        process = start("bench", "-np", "2", *arguments, *SHORT, environ=environ)
        output, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors
        return output

    return run


def results_of(document):
    """By operation, type and peer."""
    return {(each["operation"], each["dtype"], each["peer"]): each for each in document["results"]}


def test_operations_beside_mpi_and_the_limits(extras, bench, family, tmp_path):
    peers = "tf_hvd,tf.identity,mpi,mpi in place,sketch,copy"
    words = ["--sizes", "4,1000K", "--operations", ",".join(OPERATIONS), "--peers", peers]
    words += ["--dtypes", "float32,bfloat16", "--training", "tape", "--plot", "drawn.svg", "--json"]
    words += ["--html", "page.html"]
    document = json.loads(bench(*words))
    assert document["job"]["ranks"] == 2
    assert document["job"]["mpi"].startswith({"openmpi": "Open MPI", "mpich": "MPICH"}[family])
    assert document["missing"] == {}
    found = results_of(document)
    for operation in OPERATIONS:
        assert len(found[operation, "bfloat16", "tf_hvd"]["seconds"]) == 2
        # That a peer was timed says that its result was right.
        assert found[operation, "float32", "mpi"]["bus_bandwidth"] > 0
        adds = operation in ("allreduce", "reducescatter")
        reason = "MPI does not add bfloat16" if adds else None
        assert found[operation, "bfloat16", "mpi"]["missing"] == reason
    assert found["allreduce", "float32", "sketch"]["missing"] is None
    assert found["allreduce", "float32", "mpi in place"]["missing"] is None
    assert found["alltoall", "float32", "sketch"]["missing"] == "it only has allreduce"
    assert found["broadcast", "float32", "copy"]["bus_bandwidth"] is None
    assert document["training"]["tensors"] == 10
    assert document["training"]["reduction"] > 0
    assert document["command"].startswith("tf_hvd bench -np 2 --sizes 4,1000K")
    assert "<svg" in (tmp_path / "drawn.svg").read_text()
    assert "mpi in place" in (tmp_path / "page.html").read_text()


@pytest.fixture
def named_as_horovod(environ):
    """`import horovod` gives this package, whoever starts the process."""
    environ["PYTHONPATH"] = horovod_path()


@pytest.mark.parametrize("family", ["openmpi"], indirect=True)
def test_libraries_in_processes_of_their_own(named_as_horovod, bench):
    """Horovod's place is taken by this package under its name, in a job of its own."""
    peers = "tf_hvd,tf.distribute,gloo,horovod"
    words = ["--sizes", "1K", "--peers", peers, "--horovod", sys.prefix, "--mode", "grouped"]
    lines = bench(*words).splitlines()
    if importlib.util.find_spec("torch") is None:
        assert "without gloo: torch is not installed" in lines
    for peer in ("tf_hvd", "tf.distribute", "horovod"):
        (row,) = [each for each in lines if re.search(rf" {re.escape(peer)} +[\d.]+ [mu]?s ", each)]
        assert peer == "tf_hvd" or row.endswith((" x faster", " x slower", "the same")), row
    assert lines[-1].startswith("repeat with: tf_hvd bench -np 2 --sizes 1K")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sizes", "much"], "'much' is not a size"),
        (["--operations", "allsum"], "unknown operation 'allsum'; choose from allreduce, "),
        (["--dtypes", "int4"], "unknown dtype 'int4'"),
        (["--peers", "nccl"], "unknown peer 'nccl'; choose from tf_hvd, "),
        (["--gradients", "vgg17"], "unknown model 'vgg17'; choose from "),
        (["--plot", "a.jpeg"], "must end in .png or .svg"),
        (["--html", "a.pdf"], "must end in .html"),
    ],
)
def test_what_is_refused_before_a_job(call, words, said):
    code, _, errors = call("bench", "-np", "2", *words)
    assert code == 2
    assert said in errors
    assert len(errors.splitlines()) == 1
