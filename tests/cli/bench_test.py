"""`tf_hvd bench` as a user starts it: small, short jobs of two ranks."""

import json
import pathlib
import re

import pytest

SHORT = ["--repetitions", "2", "--warmup", "1", "--calls", "1"]
PEERS = str(pathlib.Path(__file__).resolve().parents[2] / "benchmarks/peers.py")
OPERATIONS = ["allreduce", "allgather", "broadcast", "alltoall", "reducescatter"]


@pytest.fixture
def bench(start, environ):
    """Run `tf_hvd bench` with 2 ranks; returns its output."""

    def run(*arguments, ranks=2):
        process = start("bench", "-np", str(ranks), *arguments, *SHORT, environ=environ)
        output, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors
        return output

    return run


def results_of(document):
    """The results by operation, type and peer."""
    return {(each["operation"], each["dtype"], each["peer"]): each for each in document["results"]}


@pytest.mark.parametrize("family", ["openmpi"], indirect=True)
def test_bench_training_reports_core_latency(extras, bench, tmp_path):
    words = ["--sizes", "1K", "--peers", "tf_hvd", "--training", "tape", "--plot", "drawn.svg"]
    document = json.loads(bench(*words, "--json", ranks=3))
    (found,) = document["results"]
    before, after = found["core_latency_us"]
    assert before > 0 < after
    assert document["training"]["tensors"] == 10
    assert document["training"]["reduction"] > 0
    assert "<svg" in (tmp_path / "drawn.svg").read_text()


def test_bench_compares_with_mpi_and_limits(bench, family):
    peers = "tf_hvd,tf.identity,mpi,mpi in place,sketch,copy"
    words = ["--sizes", "1000K", "--operations", ",".join(OPERATIONS), "--peers", peers]
    words += ["--dtypes", "float32,bfloat16", "--json"]
    document = json.loads(bench(*words))
    assert document["job"]["ranks"] == 2
    assert document["job"]["mpi"].startswith({"openmpi": "Open MPI", "mpich": "MPICH"}[family])
    assert document["missing"] == {}
    found = results_of(document)
    for operation in OPERATIONS:
        assert len(found[operation, "bfloat16", "tf_hvd"]["seconds"]) == 2
        # A peer is only timed if its result is right.
        assert found[operation, "float32", "mpi"]["bus_bandwidth"] > 0
        adds = operation in ("allreduce", "reducescatter")
        reason = "MPI does not support bfloat16" if adds else None
        assert found[operation, "bfloat16", "mpi"]["missing"] == reason
    assert found["allreduce", "float32", "sketch"]["missing"] is None
    assert found["allreduce", "float32", "mpi in place"]["missing"] is None
    assert found["alltoall", "float32", "sketch"]["missing"] == "it supports only allreduce"
    assert found["broadcast", "float32", "copy"]["bus_bandwidth"] is None
    assert document["command"].startswith("tf_hvd bench -np 2 --sizes 1000K")


@pytest.mark.tier2
@pytest.mark.parametrize("family", ["openmpi"], indirect=True)
def test_other_libraries_with_the_source_script(call, environ):
    words = ["run", "-np", "2", "python", PEERS, "--sizes", "1K", "--peers", "tf_hvd", *SHORT]
    code, output, errors = call(*words, environ=environ)
    assert code == 0, errors
    lines = output.splitlines()
    assert "without horovod: pass its environment: --horovod FOLDER" in lines
    (row,) = [each for each in lines if re.search(r" tf.distribute +[\d.]+ [mu]?s ", each)]
    assert row.endswith((" x faster", " x slower", "the same")), row
    assert lines[-1] == f"repeat with: tf_hvd {' '.join(words)}"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sizes", "much"], "'much' is not a size"),
        (["--operations", "allsum"], "unknown operation 'allsum'; choose from allreduce, "),
        (["--dtypes", "int4"], "unknown dtype 'int4'"),
        (["--peers", "nccl"], "unknown peer 'nccl'; choose from tf_hvd, "),
        (["--gradients", "vgg17"], "unknown model 'vgg17'; choose from "),
        (["--plot", "a.jpeg"], "must end in .png or .svg"),
    ],
)
def test_invalid_options_are_refused_before_the_job(call, words, said):
    code, _, errors = call("bench", "-np", "2", *words)
    assert code == 2
    assert said in errors
    assert len(errors.splitlines()) == 1
