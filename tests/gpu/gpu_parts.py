"""The parts that tests/run_gpu.sh and tests/gpu/first_hour.sh run: commands, and how to read
their output.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import shutil
from collections.abc import Callable

from gpu_machine import CUT_SHORT, Gpus, closing_line, find_nccl
from gpu_programs import Outcome

LARGEST_JOB = 8
# NCCL's messages about two ranks on one GPU; the second one since 2.30.
ONE_GPU = ("Duplicate GPU", "Multiple Ranks are using the same GPU")
# The probes in one process, and the one with two ranks.
PROBES, NCCL_PROBE = ("queries", "host_function", "copies", "waits"), "calls"
# Lag of the inputs in the job that does not wait for them: the copies are four times as large.
LAG_MIB = 1024


def read_plainly(code: int, output: str) -> Outcome:
    """The closing line is the figure."""
    return Outcome("passed" if code == 0 else "failed", closing_line(output), output)


def read_job(code: int, output: str, flawed: bool = False) -> Outcome:
    """`flawed`: the results must be wrong."""
    no_nccl = re.search(r"^no NCCL: .*", output, re.MULTILINE)
    if code == 0 and no_nccl:
        return Outcome("not run", no_nccl[0])
    if code != 0 and any(text in output for text in ONE_GPU):
        return Outcome("not run", "this NCCL does not let ranks share a GPU", output)
    well = " is wrong at byte " in output if flawed else code == 0
    return Outcome("passed" if well else "failed", closing_line(output), output)


def read_flawed(code: int, output: str) -> Outcome:
    return read_job(code, output, flawed=True)


def read_probe(code: int, output: str) -> Outcome:
    """The figure is the number of figures in its line."""
    outcome = read_job(code, output)
    lines = [line for line in output.split("\n") if re.match(r"\w+:( \w+=| not here: )", line)]
    if outcome.result == "not run" or not lines:
        return outcome
    measured, _, missing = lines[0].partition(" not here: ")
    count = measured.count("=")
    figure = f"{count} figures" + (f"; not here: {missing}" if missing else "")
    if code == 0 and count == 0:
        return Outcome("not run", missing, output)
    return Outcome(outcome.result, figure, output)


def read_sanitizer(code: int, output: str) -> Outcome:
    if code != 0 and "Device not supported" in output:
        return Outcome("not run", "compute-sanitizer does not support this device here", output)
    summary = [line for line in output.split("\n") if "SUMMARY" in line]
    figure = summary[-1].strip("= ") if summary else closing_line(output)
    return Outcome("passed" if code == 0 else "failed", figure, output)


@dataclasses.dataclass(frozen=True)
class Part:
    name: str
    command: list[str]
    limit: float  # in seconds
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    read: Callable[[int, str], Outcome] = read_plainly
    missing: str = ""  # the reason why it cannot run here
    nccl: bool = False  # its ranks communicate by NCCL
    after: str = ""  # the part that must succeed first

    def outcome(self, code: int, output: str) -> Outcome:
        if code == CUT_SHORT:
            return Outcome("failed", closing_line(output), output)
        return self.read(code, output)


class Parts:
    """The parts for the existing GPUs, with the programs in a folder."""

    def __init__(
        self, programs: pathlib.Path, gpus: Gpus, bandwidth: str = "", job: str = "",
        probes: str = "",
    ) -> None:  # fmt: skip
        self.programs = programs
        self.several = min(len(gpus.names), LARGEST_JOB)
        self.arguments = {"bandwidth": bandwidth, "job": job, "probes": probes}
        self.nccl = os.environ.get("TF_HVD_NCCL_LIBRARY", "") or find_nccl()
        self.libraries = [f"--cuda={os.environ.get('TF_HVD_CUDA_LIBRARY', '')}"]
        self.libraries += [f"--nccl={self.nccl}"]

    def program(self, name: str, *arguments: str) -> list[str]:
        return [str(self.programs / name), *self.libraries, *arguments]

    def given(self, kind: str) -> list[str]:
        """The caller's arguments of a program; the last one of each name counts."""
        return self.arguments[kind].split()

    def check(self) -> Part:
        return Part("kernels against the host, bits", self.program("device_check"), 600)

    def sanitizers(self) -> list[Part]:
        found = shutil.which("compute-sanitizer")
        parts = []
        for tool in ("memcheck", "racecheck"):
            command = [found or "compute-sanitizer", "--tool", tool, "--error-exitcode", "9"]
            command += ["--print-limit", "20", *self.program("device_check", "--large=0")]
            missing = "" if found else "compute-sanitizer is not installed"
            name = f"compute-sanitizer, {tool}"
            parts.append(Part(name, command, 1200, {}, read_sanitizer, missing))
        return parts

    def bandwidth(
        self, name: str = "pack and unpack against a copy", *arguments: str
    ) -> Part:  # fmt: skip
        command = self.program("device_bandwidth", *self.given("bandwidth"), *arguments)
        return Part(name, command, 300)

    def job(self, *arguments: str, lag_mib: int = 0) -> list[str]:
        lag = [f"--lag_mib={lag_mib}"] if lag_mib else []
        return self.program("nccl_job", *lag, *self.given("job"), *arguments)

    def nccl_job(
        self, name: str, *arguments: str, one_gpu: bool = False,
        read: Callable[[int, str], Outcome] = read_job, missing: str = "", lag_mib: int = 0,
    ) -> Part:  # fmt: skip
        environment = self.of_one_gpu() if one_gpu else {}
        # The ranks' lines precede the job's last line in the output.
        debug = "INFO" if one_gpu else "WARN"
        environment["NCCL_DEBUG"] = os.environ.get("NCCL_DEBUG", debug)
        command = self.job(*arguments, lag_mib=lag_mib)
        return Part(name, command, 300, environment, read, missing, nccl=True)

    @staticmethod
    def of_one_gpu() -> dict[str, str]:
        """Make ranks that share a GPU separate hosts for NCCL, connected by the loopback."""
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        network = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"}
        return {
            "CUDA_VISIBLE_DEVICES": first,
            "TF_HVD_SOFTWARE_GPUS": "1",
            **{name: os.environ.get(name, value) for name, value in network.items()},
        }

    def jobs(self) -> list[Part]:
        """Jobs of the runtime without TensorFlow."""
        parts = [Part("runtime, one rank", self.job("--ranks=1"), 120)]
        parts.append(self.nccl_job("NCCL, 2 ranks on one GPU", "--ranks=2", one_gpu=True))
        one = self.several < 2
        missing = "there is only one GPU" if one else ""
        name, arguments = "NCCL, inputs not awaited", ("--ranks=2", "--forget=1")
        flawed = self.nccl_job(
            name, *arguments, one_gpu=one, read=read_flawed, lag_mib=LAG_MIB
        )  # fmt: skip
        parts.append(flawed)
        name, arguments = "NCCL, a rank is killed", ("--ranks=2", "--kill=1")
        parts.append(self.nccl_job(name, *arguments, one_gpu=one))
        for way in ("processes", "threads"):
            name = f"NCCL, a GPU for each rank, {way}"
            arguments = (f"--ranks={self.several}", f"--way={way}")
            parts.append(self.nccl_job(name, *arguments, missing=missing))
        ranks = max(2, self.several)
        command = self.job(f"--ranks={ranks}", "--use_nccl=0")
        parts.append(Part(f"by the host's memory, {ranks} ranks", command, 300))
        killed = [*command, "--kill=1"]
        parts.append(Part("by the host's memory, a rank is killed", killed, 300))
        return parts

    def probe(self, name: str, *arguments: str, **environment: str) -> Part:
        command = self.program("device_probes", f"--probe={name}", *arguments)
        command += self.given("probes")
        return Part(f"probe, {name}", command, 120, environment, read_probe)

    def probes(self) -> list[Part]:
        return [self.probe(name) for name in PROBES]

    def nccl_probe(self) -> Part:
        """Two ranks on one GPU exchange data through sockets."""
        environment = self.of_one_gpu() if self.several < 2 else {}
        environment["NCCL_DEBUG"] = os.environ.get("NCCL_DEBUG", "WARN")  # it measures calls
        part = self.probe(NCCL_PROBE, "--megabytes=64", **environment)
        return dataclasses.replace(part, nccl=True)
