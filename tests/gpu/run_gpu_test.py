"""Runs tests/run_gpu.sh on GPUs of software, without TensorFlow, and where there is no GPU.

With the programs that Bazel has built; one test compiles them with g++ alone, as a machine
does that has no Bazel.
"""

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests" / "run_gpu.sh"
PROGRAMS = ROOT / "build" / "gpu"
LIBRARY = PROGRAMS / "libsoftware_gpu.so"
# What a card does in milliseconds.
QUICKLY = ("--bandwidth=--repetitions=1 --megabytes=1 --share=8", "--job=--lag_mib=1")


def software(**settings):
    libraries = {"TF_HVD_CUDA_LIBRARY": str(LIBRARY), "TF_HVD_NCCL_LIBRARY": str(LIBRARY)}
    return {**os.environ, **libraries, **settings}


def run(environment, *arguments):
    ended = subprocess.run(
        [str(SCRIPT), "--programs", str(PROGRAMS), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    print(ended.stdout)
    return ended.returncode, ended.stdout


def table(output):
    """Result and figure by part."""
    rows = [line.split(" | ") for line in output.split("\n") if line.count(" | ") >= 2]
    return {row[0].strip(): (row[1].strip(), row[2].strip()) for row in rows}


def test_everything_that_a_software_gpu_can(tmp_path):
    assert LIBRARY.exists(), "./dev test --all builds it"
    arguments = [*QUICKLY, "--folder", str(tmp_path)]
    code, output = run(software(), *arguments)
    assert code == 0, output
    parts = table(output)
    assert parts["GPUs"] == ("found", "2: Software GPU")
    assert re.fullmatch(
        r"\d+ kernels, \d{3,} launches, \d{7,} elements moved; .*",
        parts["kernels against the host, bits"][1],
    )
    for name, ranks in [
        ("runtime, one rank", "1 process on 1 GPU"),
        ("NCCL, 2 ranks on one GPU", "2 processes on 1 GPU"),
        ("NCCL, a GPU for each rank, processes", "2 processes on 2 GPUs"),
        ("NCCL, a GPU for each rank, threads", "2 threads on 2 GPUs"),
        ("by the host's memory, 2 ranks", "2 processes on 2 GPUs"),
    ]:
        assert parts[name] == ("passed", f"58 collectives, {ranks}: all exact")
    assert parts["pack and unpack against a copy"][0] == "passed"
    assert "of 85 %" in parts["pack and unpack against a copy"][1]
    assert parts["NCCL, inputs not awaited"] == ("passed", "failed: ranks 0 1")
    for way in ("NCCL", "by the host's memory"):
        told = "one rank killed of 2 processes on 2 GPUs: the others were told"
        assert parts[f"{way}, a rank is killed"] == ("passed", told)
    assert parts["TensorFlow, op tests"][0] == "not run"


def test_a_part_that_fails_fails_the_run(tmp_path):
    programs = tmp_path / "programs"
    shutil.copytree(PROGRAMS, programs)
    broken = programs / "device_check"
    broken.unlink()
    broken.write_text("#!/bin/sh\necho tf_hvd_copy_1 differs at byte 7\nexit 1\n")
    broken.chmod(0o755)
    arguments = [*QUICKLY, "--programs", str(programs)]
    code, output = run(software(), *arguments)
    assert code == 1
    assert table(output)["kernels against the host, bits"] == (
        "failed",
        "tf_hvd_copy_1 differs at byte 7",
    )
    assert table(output)["NCCL, 2 ranks on one GPU"][0] == "passed"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"TF_HVD_CUDA_LIBRARY": "libno_such_driver.so"}, "there is no CUDA driver"),
        ({"TF_HVD_SOFTWARE_GPUS": "0"}, "the driver has no device"),
    ],
)
def test_without_a_gpu_it_says_so(settings, reason):
    code, output = run(software(**settings))
    assert code == 0
    assert output.startswith(f"no GPU: {reason}")
    assert output.count("\n") == 1


def test_the_programs_say_so_too():
    for name in ("device_check", "device_bandwidth", "device_probes", "nccl_job"):
        ended = subprocess.run(
            [str(PROGRAMS / name), "--cuda=libno_such_driver.so"],
            stdout=subprocess.PIPE,
            text=True,
            timeout=600,
        )
        assert (ended.returncode, ended.stdout) == (3, "no GPU: there is no CUDA driver\n")


def test_gcc_alone_builds_the_programs(tmp_path):
    """A source that the runtime has gained and the script's list does not know ends here."""
    script = ROOT / "tests" / "gpu" / "build_programs.sh"
    codes = ROOT / "bazel-bin" / "compute" / "device_codes.cc"
    build = ["bash", str(script), str(tmp_path), str(codes)]
    subprocess.run(build, env={**os.environ, "OPTIMIZE": "0"}, check=True, timeout=600)
    job = [str(tmp_path / "nccl_job"), f"--cuda={LIBRARY}", f"--nccl={LIBRARY}", "--lag_mib=1"]
    ended = subprocess.run(job, stdout=subprocess.PIPE, text=True, timeout=600)
    assert ended.returncode == 0, ended.stdout
    assert "58 collectives" in ended.stdout


def test_device_check_finds_wrong_bits(tmp_path):
    """Two kernels of the software GPU, of int8 and of bool, change their names."""
    library, names = LIBRARY.read_bytes(), [b"tf_hvd_scale_int8\0", b"tf_hvd_scale_bool\0"]
    assert [library.count(name) for name in names] == [1, 1]
    places = [library.index(name) for name in names]
    changed = bytearray(library)
    for place, name in zip(places, reversed(names), strict=True):
        changed[place : place + len(name)] = name
    wrong = tmp_path / "libwrong.so"
    wrong.write_bytes(changed)
    ended = subprocess.run(
        [str(PROGRAMS / "device_check"), f"--cuda={wrong}", "--large=0"],
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 1
    assert re.match(r"tf_hvd_scale_int8 on \w+ rows, times .*, differs at byte \d+", ended.stdout)


def test_training_times_are_read_from_the_benchmarks_json(monkeypatch):
    spec = importlib.util.spec_from_file_location("run_gpu", ROOT / "tests" / "gpu" / "run_gpu.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "run_gpu", module)  # dataclasses look there
    spec.loader.exec_module(module)
    text = (
        'a line {of text}\n{"results": [{"a": 1}], "training": {"without": 0.5, "exposed": 0.25}}'
    )
    assert module.training_times(text) == {"without": 0.5, "exposed": 0.25}
    assert module.training_times("nothing {") is None
    assert "allreduce" in module.software_device_files()
