"""Runs TensorFlow's GPU wheel on a machine without a GPU, before a GPU is borrowed.

Its CUDA device, its streams and XLA's compiler for GPUs are the real ones. The driver is the one in
software_driver.cc; software_gpu.h describes it.
"""

from __future__ import annotations

import os
import pathlib
import subprocess

import parts  # also puts the folder of these modules on the path
from gpu_machine import call
from gpu_parts import read_plainly
from step_runner import tell

NAMES = ("libcuda.so.1", "libcudart.so.12", "libnvidia-ml.so.1")
LIMIT = 300


def build_driver(software: pathlib.Path, folder: pathlib.Path) -> None:
    """Build one library under three names; libsoftware_gpu.so has its other functions."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        (folder / name).unlink(missing_ok=True)
    compiler = os.environ.get("CXX", "g++")
    command = [compiler, "-std=c++17", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-pthread"]
    command += [str(parts.HERE / "software_driver.cc"), str(software)]
    command += [f"-Wl,-rpath,{software.parent}", "-o", str(folder / NAMES[0])]
    subprocess.run(command, check=True)
    for name in NAMES[1:]:
        (folder / name).symlink_to(NAMES[0])


def rehearse(store: pathlib.Path, software: pathlib.Path, given: dict[str, str]) -> int:
    """Run our collectives in three kinds of jobs; return 1 if one failed."""
    driver, environment = store / "driver", store / "environment"
    build_driver(software, driver)
    search = f"{environment / 'stand_ins'}:{driver}"
    failed = 0
    for name, ranks, gpus, settings in (
        ("1 rank", 1, 1, {}),
        ("2 ranks, host", 2, 1, {"TF_HVD_NCCL": "0"}),
        ("2 ranks, NCCL", 2, 2, {"TF_HVD_NCCL_LIBRARY": str(software)}),
    ):
        command = [str(environment / "bin" / "tf_hvd"), "run", "-np", str(ranks)]
        command += [str(environment / "bin" / "python"), str(parts.HERE / "collectives.py")]
        all_settings = {**given, **settings, "LD_LIBRARY_PATH": search}
        all_settings |= {"TF_HVD_SOFTWARE_GPUS": str(gpus), "TF_CPP_MIN_LOG_LEVEL": "2"}
        code, output = call(command, LIMIT, all_settings)
        outcome = read_plainly(code or int(output.count(" results exact") != ranks), output)
        tell(f"rehearsal, {name}", outcome.result, outcome.figure)
        if outcome.result == "failed":
            failed = 1
            print(output[-6000:])
    return failed
