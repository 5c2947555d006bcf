"""`tf_hvd doctor` on this machine, with a software GPU, and with broken installations."""

import json
import os
import pathlib
import re
import sys

import pytest
from finished import finished

from tf_hvd.core import _native
from tf_hvd.launch.commands import doctor

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOFTWARE = ROOT / "build" / "libsoftware_device.so"
LIMIT = 600
pytestmark = pytest.mark.timeout(LIMIT + 30)


@pytest.fixture
def report(start, environ):
    """Run `tf_hvd doctor --json`; returns its exit code and its lines by name."""

    def run(*arguments, **variables):
        process = start("doctor", "--json", *arguments, environ={**environ, **variables})
        output, errors = process.communicate(timeout=LIMIT)
        assert errors == ""
        told = json.loads(output)
        assert told["stops_a_job"] == bool(process.returncode)
        lines = {}
        for line in told["findings"]:
            assert bool(line["cure"]) == (line["state"] != "ok"), line
            lines.setdefault(line["name"], []).append(line)
        return process.returncode, lines

    return run


def value(lines, name):
    (line,) = lines[name]
    return line["value"]


def test_this_machine(report, family, mpi_prefixes):
    code, lines = report(TF_HVD_CUDA_LIBRARY="no_such_libcuda.so.1")
    assert code == 0
    info = _native.build_info
    assert value(lines, "tf_hvd").startswith(f"{info.VERSION}, built for TensorFlow 2.")
    assert _native.build["tensorflow"] in value(lines, "TensorFlow")
    assert sys.executable in value(lines, "Python")
    name = {"openmpi": "Open MPI ", "mpich": "MPICH "}[family]
    assert value(lines, "MPI launcher").startswith(name)
    assert str(mpi_prefixes[family] / "bin") in value(lines, "MPI launcher")
    assert str(mpi_prefixes[family] / "lib") in value(lines, "MPI library")
    assert name.strip() in value(lines, "MPI library")
    cores, _, pair = value(lines, "cores").partition("; ")
    assert cores == str(doctor.count_cores())
    assert re.search(r"core-to-core latency \d+\.\d\d us$", pair) or cores == "1"
    assert value(lines, "shared memory").endswith(" MiB free in /dev/shm")
    assert "no_such_libcuda.so.1: cannot open" in value(lines, "CUDA driver")
    assert "tensors on GPUs" not in lines


@pytest.mark.tier2
@pytest.mark.parametrize("family", ["openmpi"], indirect=True)
def test_on_a_software_gpu(report, environ):
    assert SOFTWARE.exists(), "./dev test --all builds it"
    software = {"TF_HVD_CUDA_LIBRARY": str(SOFTWARE), "TF_HVD_NCCL_LIBRARY": str(SOFTWARE)}
    code, lines = report(**software)
    assert code == 0
    assert value(lines, "CUDA driver") == f"for CUDA 12.5, {SOFTWARE}"
    assert value(lines, "GPU 0") == "Software GPU, compute capability 9.0"
    assert value(lines, "NCCL") == f"2.21.5, {SOFTWARE}"
    assert value(lines, "tensors on GPUs") == "reduced by NCCL if all ranks have it"

    code, lines = report(**software, TF_HVD_NCCL="0")
    assert code == 0
    assert value(lines, "NCCL") == "none: TF_HVD_NCCL=0"
    assert value(lines, "tensors on GPUs") == (
        "reduced by MPI if it is CUDA-aware on all ranks, else in host memory"
    )

    table = [sys.executable, "-m", "tf_hvd_command", "--horovodrun", "--check-build"]
    done = finished(table, env={**environ, **software}, check=True)
    assert "[X] NCCL (2.21.5)" in done.stdout

    code, lines = report(**software | {"TF_HVD_NCCL_LIBRARY": "no_such_libnccl.so.2"})
    assert code == 0, "tensors can use another transport"
    (line,) = lines["NCCL"]
    assert line["value"].startswith("none: no_such_libnccl.so.2: cannot open")
    assert "TF_HVD_NCCL_LIBRARY" in line["cure"]


@pytest.mark.parametrize("family", ["openmpi"], indirect=True)
def test_broken_installation(report, tmp_path):
    library = tmp_path / "libmpi.so.40"
    library.write_bytes(b"\x7fELF... ompi_mpi_comm_world ... cut off")
    code, lines = report(TF_HVD_MPI_LIBRARY=str(library), TF_HVD_NCLL="0")
    assert code == 1
    (line,) = lines["MPI library"]
    assert (line["state"], str(library) in line["value"]) == ("problem", True)
    assert "TF_HVD_MPI_LIBRARY" in line["cure"]
    unknown = next(line for line in lines["setting"] if "TF_HVD_NCLL" in line["value"])
    assert (unknown["state"], unknown["cure"]) == ("note", "did you mean TF_HVD_NCCL?")

    code, lines = report(TF_HVD_SPARSE="never", TF_HVD_MPI_LIBRARY=str(tmp_path / "none.so"))
    assert code == 1
    assert "No such file or directory" in value(lines, "MPI launcher")
    assert lines["setting"][0]["state"] == "problem"
    assert lines["setting"][0]["value"].startswith("TF_HVD_SPARSE='never' is not one of")


@pytest.mark.parametrize("family", ["openmpi"], indirect=True)
def test_checks_have_a_time_limit(report, tmp_path):
    (tmp_path / "tensorflow.py").write_text("import time; time.sleep(1000)\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    code, lines = report("--limit", "1", PYTHONPATH=path)
    assert code == 1
    assert "no answer within 1 s" in value(lines, "TensorFlow")


@pytest.mark.parametrize("family", ["openmpi"], indirect=True)
def test_report_as_text(start, environ):
    process = start("doctor", environ={**environ, "TF_HVD_SPIN_MICROSECONDS": "long"})
    output, errors = process.communicate(timeout=LIMIT)
    assert (process.returncode, errors) == (1, "")
    lines = output.splitlines()
    assert lines[0].split()[:2] == ["tf_hvd", _native.build_info.VERSION + ","]
    wrong = next(i for i, line in enumerate(lines) if "problem: " in line)
    assert "TF_HVD_SPIN_MICROSECONDS=long" in lines[wrong]
    assert lines[wrong + 1].split()[0] == "->"
    assert lines[-1] == "a job would not start here"


def test_crash_of_a_check_is_reported(tmp_path, monkeypatch):
    """A library that ends the process does not lose the report."""
    script = tmp_path / "doctor_facts.py"
    script.write_text(
        "import os, sys\n"
        'print(\'{"name": "asking", "value": "gpu"}\', flush=True)\n'
        'print(\'{"name": "cut off\', flush=True)\n'
        "print('the driver says no', file=sys.stderr, flush=True)\n"
        "os.abort()\n"
    )
    monkeypatch.setattr(doctor, "__file__", str(script))
    facts, ended = doctor._ask(None, os.environ, 2, LIMIT)
    assert facts == {"asking": "gpu"}
    assert ended == "ended by SIGABRT (the driver says no)"
