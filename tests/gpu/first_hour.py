"""Implements tests/gpu/first_hour.sh and tests/run_gpu.sh: all tests on a GPU, and a report.

`run` runs steps that have no results yet and fit into --budget, in order of importance. Each step
has a file in --out, which keeps the output even if this process is killed. The next call continues
with that file, or with a copy of it in --earlier. report.md is written again after each part.

Exit code 1 if a part failed. TF_HVD_CUDA_LIBRARY and TF_HVD_NCCL_LIBRARY name libraries to use
instead of the machine's own.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import pathlib
import re
import shutil
import signal
import sys
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import first_hour_report
import gpu_programs
import tensorflow_parts
from first_hour_pack import pack
from gpu_machine import ROOT, Gpus, closing_line, find_gpus
from gpu_parts import Part, Parts
from gpu_programs import Outcome
from step_runner import LEAST, Runner, Step

# Folders of programs: of a packed folder, of ./dev test --all, and of any build (used by pack).
BUILT, OF_BAZEL = ROOT / "build" / "gpu", ROOT / "bazel-bin" / "tests" / "gpu"
MACHINE = str(pathlib.Path(__file__).resolve().parent / "gpu_machine.py")
QUERY = "name,driver_version,memory.total,clocks.max.sm,clocks.max.memory,compute_mode"
NO_COUNTERS = "ERR_NVGPUCTRPERM"
SECTIONS = (
    "SpeedOfLight", "MemoryWorkloadAnalysis", "Occupancy", "LaunchStats", "WarpStateStats",
    "InstructionStats",
)  # fmt: skip
# Launches of a kernel that are not profiled. A repetition has one launch for each of a case's
# pieces of 32 MiB or more, 8 at most. The first two repetitions do not count, which is 16 launches
# at most. Launch 120 is after these, and starts a repetition for up to 6 pieces, and for 8: the
# first piece is the largest. With this many repetitions there are enough launches even of one
# piece. If packing and unpacking use the same kernel, it is a launch of packing with the same
# bytes.
SKIPPED = 120
# Limits the time that a hang in NCCL costs on a borrowed machine, in seconds.
NCCL_LIMIT = 90.0


def tool(name: str, command: list[str], read: Callable[[int, str], Outcome]) -> Part:
    """A program of the machine that may be missing."""
    found = shutil.which(command[0])
    missing = "" if found else f"{command[0]} is not installed"
    return Part(name, [found or command[0], *command[1:]], 60, {}, read, missing)


def read_fact(code: int, output: str) -> Outcome:
    return Outcome("not run" if code else "found", closing_line(output), output)


def read_version(code: int, output: str) -> Outcome:
    """Read the line with a version from the output."""
    found = re.findall(r"^.*(?:release|[Vv]ersion) v?\d.*$", output, re.MULTILINE)
    return Outcome("not run" if code else "found", (found or [closing_line(output)])[-1], output)


def read_profile(code: int, output: str) -> Outcome:
    """Read one kernel's profile, or the reason why the machine forbids it."""
    if NO_COUNTERS in output:
        return Outcome("not run", f"profiling counters are for administrators ({NO_COUNTERS})")
    failed = re.search(r"^==ERROR== .*", output, re.MULTILINE)
    if failed:
        return Outcome("not run", failed[0].strip("= "), output)
    figures = first_hour_report.profile_figures(output)
    if code or not figures:
        return Outcome("failed", closing_line(output), output)
    return Outcome("passed", ", ".join(f"{name} {value}" for name, value in figures.items()))


def machine_parts(kit: Kit) -> list[Part]:
    def fact(name: str, *arguments: str) -> Part:
        return Part(name, [sys.executable, MACHINE, *arguments], 60, {}, read_fact)

    cuda = os.environ.get("TF_HVD_CUDA_LIBRARY", "")
    query = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"]
    return [
        fact("GPUs", "driver", cuda),
        fact("host", "host"),
        fact("NCCL", "nccl", kit.parts.nccl),
        tool("nvidia-smi", query, read_fact),
        tool("nvidia-smi, all", ["nvidia-smi", "-q"], lambda code, output: Outcome(
            "not run" if code else "found", f"{output.count(chr(10))} lines, in the file")),
        tool("nvcc", ["nvcc", "--version"], read_version),
        tool("compute-sanitizer", ["compute-sanitizer", "--version"], read_version),
        tool("ncu", ["ncu", "--version"], read_version),
        tool("g++", ["g++", "--version"], lambda code, output: Outcome(
            "not run" if code else "found", output.partition("\n")[0])),
    ]  # fmt: skip


def profile_parts(kit: Kit) -> list[Part]:
    """Profile the kernel that the bandwidth step found to be the slowest."""
    name = "ncu, the slowest kernel"
    slowest = first_hour_report.slowest(kit.entries("bandwidth"))
    case, kernel = slowest or ("the slowest case", "ITS_KERNEL")
    # ncu changes the clocks unless this option forbids it; a borrowed GPU's clocks are not ours.
    command = ["ncu", "--clock-control", "none", "--kernel-name", kernel]
    command += ["--launch-skip", str(SKIPPED), "--launch-count", "1"]
    command += [f"--section={one}" for one in SECTIONS]
    command += kit.parts.program("device_bandwidth", *kit.parts.given("bandwidth"))
    command += [f"--repetitions={SKIPPED}", f"--only={case}"]
    part = dataclasses.replace(tool(name, command, read_profile), limit=300)
    if slowest or part.missing:
        return [part]
    return [dataclasses.replace(part, missing="the bandwidth has not been measured")]


def bandwidth_parts(kit: Kit) -> list[Part]:
    """All launches; then one case, with its lists of tensors in pinned and in device memory."""
    case = f"--only={first_hour_report.LISTS_CASE}"
    return [
        kit.parts.bandwidth(),
        kit.parts.bandwidth(first_hour_report.PINNED_LISTS, case),
        kit.parts.bandwidth(first_hour_report.DEVICE_LISTS, case, "--rows=device"),
    ]


def job_parts(kit: Kit) -> list[Part]:
    """If the first job with NCCL fails, the others are skipped: a hang would cost as much again."""
    parts: list[Part] = []
    first = ""
    for part in [*kit.parts.jobs(), kit.parts.nccl_probe()]:
        if part.nccl:
            limit = min(part.limit, NCCL_LIMIT)
            parts.append(dataclasses.replace(part, limit=limit, after=first))
            first = first or part.name
        else:
            parts.append(part)
    return parts


def picked(asked: str, names: list[str]) -> set[str]:
    """The parts chosen by --parts: names separated by commas, otherwise names with that text."""
    found = set()
    for name in sorted((name for name in names if "," in name), key=len, reverse=True):
        asked, count = re.subn(rf"(^|,)\s*{re.escape(name)}\s*(?=,|$)", ",", asked)
        if count:
            found.add(name)
    pieces = [piece.strip() for piece in asked.split(",") if piece.strip()]
    return found | {name for name in names if any(piece in name for piece in pieces)}


def tensorflow_parts_of(kit: Kit) -> list[Part]:
    return tensorflow_parts.of_this_python(kit.gpus, kit.out)


# Without the last step, which needs more than a driver, there are at most eight files.
STEPS = (
    Step("machine", "facts of the machine", machine_parts),
    Step("kernels", "kernels against the host", lambda kit: [kit.parts.check()], 60),
    Step("bandwidth", "bandwidth of the kernels", bandwidth_parts, 30),
    Step("probes", "measurements that decide the design", lambda kit: kit.parts.probes(), 30),
    Step("jobs", "the runtime, NCCL, a killed rank", job_parts, 30),
    Step("sanitizer", "compute-sanitizer", lambda kit: kit.parts.sanitizers(), 90),
    Step("profile", "ncu on the slowest kernel", profile_parts, 60),
    Step("tensorflow", "op tests and training", tensorflow_parts_of, 60),
)
# The steps that run_gpu.sh runs are different.
FIRST = "machine,kernels,bandwidth,probes,jobs,sanitizer,profile"

# Limit for a part in a command with a time limit, in seconds.
MOST = 240.0


class Kit(Runner):
    """The steps, with our own programs."""

    def __init__(self, options: argparse.Namespace, gpus: Gpus) -> None:
        super().__init__(options, gpus, STEPS, pathlib.Path(options.out))
        if options.budget < math.inf:
            self.most = MOST
        self.asked = options.steps.split(",")
        self.why_no_programs = ""
        programs = pathlib.Path(options.programs or BUILT).resolve()
        self.parts: Parts = self.with_programs(programs)
        self.names: list[str] = [part.name for step in self.steps() for part in step.parts(self)]
        self.named = picked(options.parts, self.names)

    def with_programs(self, programs: pathlib.Path) -> Parts:
        given = self.options
        return Parts(programs, self.gpus, given.bandwidth, given.job, given.probes)

    def why_not(self, step: Step, part: Part) -> str:
        if step.name == "machine":
            return part.missing
        missing = super().why_not(step, part)
        if not missing and part.after and not (self.named and part.after not in self.named):
            first = self.entries(step.name).get(part.after)
            states = {"failed": "failed", "cut short": "was cut short"}
            known = states.get(first.result) if first else None
            missing = f"the first job with NCCL {known}" if known else ""
        return missing or ("" if step.name == "tensorflow" else self.why_no_programs)

    def find_programs(self) -> str:
        """Find built programs that start here, or compile them; return the reason on failure."""
        why = gpu_programs.why_unusable(self.parts.programs)
        if not why or not self.gpus.names:
            return why
        compiled = pathlib.Path(self.options.folder).resolve()
        self.parts = self.with_programs(compiled)
        if not gpu_programs.why_unusable(compiled):
            return ""
        print(f"compiling: {why}", flush=True)
        log = self.log("machine")
        limit = max(LEAST, self.remaining() - LEAST)
        if gpu_programs.build(compiled, self.gpus.capabilities, limit, log.note):
            return ""
        return f"no programs: {why}, and none were compiled"

    def run(self) -> int:
        self.take_earlier()
        self.why_no_programs = self.find_programs()
        return super().run()

    def text(self) -> str:
        return first_hour_report.report(self.all_entries(), self.left)

    def dry_run(self) -> int:
        why = gpu_programs.why_unusable(self.parts.programs)
        compiler = gpu_programs.compiler_of_programs()
        how = f"programs: those in {self.parts.programs}"
        if why:
            how = (
                f"programs: {why}; they would be compiled by {compiler or 'g++, which is missing'}"
            )
        print(how)
        return super().dry_run()


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tests/gpu/first_hour.sh", description=__doc__.splitlines()[0]
    )
    parser.add_argument("command", choices=["run", "report", "pack"], nargs="?", default="run")
    parser.add_argument("to", nargs="?", default="", help="folder to write (pack)")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the steps of run without running them"
    )
    parser.add_argument(
        "--budget", type=float, default=480, help="time limit of run in seconds (default: 480)"
    )
    parser.add_argument("--out", default=str(ROOT / "build" / "first_hour"), help="results")
    parser.add_argument(
        "--earlier", default="", help="results of an earlier call, from which to continue"
    )
    parser.add_argument("--steps", default=FIRST, help="steps to run, separated by commas")
    parser.add_argument(
        "--parts",
        default="",
        help="parts to run, even if done: NAME[,NAME] or parts of their names",
    )
    parser.add_argument(
        "--programs", help="folder of built programs (default: build/gpu or Bazel's)"
    )
    parser.add_argument(
        "--folder",
        default=str(ROOT / "build" / "run_gpu"),
        help="folder for programs that must be compiled",
    )
    parser.add_argument("--bandwidth", default="", help="additional arguments of device_bandwidth")
    parser.add_argument("--job", default="", help="additional arguments of nccl_job")
    parser.add_argument("--probes", default="", help="additional arguments of device_probes")
    parser.add_argument(
        "--patience", type=float, default=1.0, help="factor for all time limits (default: 1)"
    )
    options = parser.parse_args(arguments)
    wrong = set(options.steps.split(",")) - {step.name for step in STEPS}
    if wrong:
        parser.error(f"unknown step {', '.join(sorted(wrong))}")
    if (options.command == "pack") != bool(options.to):
        parser.error("only pack takes a folder, and it requires one")
    return options


def main() -> int:
    """Run the command; on a termination signal also end its child processes."""
    options = parse(sys.argv[1:])
    if options.command == "pack":
        return pack(pathlib.Path(options.to), pathlib.Path(options.programs or OF_BAZEL).resolve())
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(128 + signal.SIGTERM))
    kit = Kit(options, find_gpus(os.environ.get("TF_HVD_CUDA_LIBRARY", "")))
    if options.parts and not kit.named:
        print(f"no part has {options.parts!r} in its name: {'; '.join(kit.names)}")
        return 2
    if options.dry_run:
        return kit.dry_run()
    if options.command == "report":
        kit.report()
        print(kit.out / "report.md")
        return 0
    return kit.run()


if __name__ == "__main__":
    sys.exit(main())
