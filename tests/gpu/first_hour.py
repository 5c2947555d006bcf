"""What tests/gpu/first_hour.sh does: the first hour on a real GPU, step by step, and its report.

`run` does what is not done yet and fits into --budget, in order of importance. Each step has a
file in --out, which has what was said even where this process was killed; with it, or with a copy
of it in --earlier, the next call goes on. report.md is written anew after each part.

Exit code 1 if something that ran failed. TF_HVD_CUDA_LIBRARY and TF_HVD_NCCL_LIBRARY name other
libraries than the machine's own.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import re
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import first_hour_report
import gpu_programs
from first_hour_pack import pack
from gpu_machine import CUT_SHORT, ROOT, Gpus, call, closing_line, find_gpus
from gpu_parts import Part, Parts
from gpu_programs import Outcome
from step_log import Entry, StepLog

# Of a packed folder, and of ./dev test --all; of any build, which pack takes.
BUILT, OF_BAZEL = ROOT / "build" / "gpu", ROOT / "bazel-bin" / "tests" / "gpu"
MACHINE = str(pathlib.Path(__file__).resolve().parent / "gpu_machine.py")
# Less than this is not enough to begin anything with; the rest of the budget, s.
LEAST = 2.0
QUERY = "name,driver_version,memory.total,clocks.max.sm,clocks.max.memory,compute_mode"
NO_COUNTERS = "ERR_NVGPUCTRPERM"
SECTIONS = (
    "SpeedOfLight", "MemoryWorkloadAnalysis", "Occupancy", "LaunchStats", "WarpStateStats",
    "InstructionStats",
)  # fmt: skip
# Launches of a kernel that are not looked at. A repetition has a launch for each of a case's
# pieces of 32 MiB or more, 8 at most, and two repetitions do not count: 16 launches at most. 120
# is behind these, and begins a repetition for up to 6 pieces, and for 8: its first piece is the
# largest. With as many repetitions there are enough launches, even of one piece. Where packing
# and unpacking have the same kernel, it is a launch of packing, with the same bytes.
SKIPPED = 120
# What hangs in NCCL is not to cost more of a lent machine, s.
NCCL_LIMIT = 90.0


@dataclasses.dataclass(frozen=True)
class Step:
    """Its file is NUMBER-NAME.log. Files, with the report, are eight at most."""

    name: str
    what: str
    parts: Callable[[Kit], list[Part]]


def tool(name: str, command: list[str], read: Callable[[int, str], Outcome]) -> Part:
    """A program of the machine's that may not be there."""
    found = shutil.which(command[0])
    missing = "" if found else f"there is no {command[0]}"
    return Part(name, [found or command[0], *command[1:]], 60, {}, read, missing)


def read_fact(code: int, output: str) -> Outcome:
    return Outcome("not run" if code else "found", closing_line(output), output)


def read_version(code: int, output: str) -> Outcome:
    """The line that has a version, of several."""
    found = re.findall(r"^.*(?:release|[Vv]ersion) v?\d.*$", output, re.MULTILINE)
    return Outcome("not run" if code else "found", (found or [closing_line(output)])[-1], output)


def read_profile(code: int, output: str) -> Outcome:
    """Of one kernel's launch; or why the machine allows none."""
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
    """Of the kernel that the bandwidth step has found to be the slowest."""
    name = "ncu, the slowest kernel"
    slowest = first_hour_report.slowest(kit.entries("bandwidth"))
    case, kernel = slowest or ("the slowest case", "ITS_KERNEL")
    # A lent card's clocks are not ours to change, which ncu does unless it is told not to.
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
    """All launches; then one case, with its lists of tensors where they are and on the device."""
    case = f"--only={first_hour_report.LISTS_CASE}"
    return [
        kit.parts.bandwidth(),
        kit.parts.bandwidth(first_hour_report.PINNED_LISTS, case),
        kit.parts.bandwidth(first_hour_report.DEVICE_LISTS, case, "--rows=device"),
    ]


def job_parts(kit: Kit) -> list[Part]:
    """If the first job with NCCL fails, the others would, and a hang would cost as much again."""
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
    """Of --parts: names with commas as a whole; else those that have a piece of it in them."""
    found = set()
    for name in sorted((name for name in names if "," in name), key=len, reverse=True):
        asked, count = re.subn(rf"(^|,)\s*{re.escape(name)}\s*(?=,|$)", ",", asked)
        if count:
            found.add(name)
    pieces = [piece.strip() for piece in asked.split(",") if piece.strip()]
    return found | {name for name in names if any(piece in name for piece in pieces)}


STEPS = (
    Step("machine", "facts of the machine", machine_parts),
    Step("kernels", "kernels against the host", lambda kit: [kit.parts.check()]),
    Step("bandwidth", "bandwidth of the kernels", bandwidth_parts),
    Step("probes", "what decides the design", lambda kit: kit.parts.probes()),
    Step("jobs", "the runtime, NCCL, a killed rank", job_parts),
    Step("sanitizer", "compute-sanitizer", lambda kit: kit.parts.sanitizers()),
    Step("profile", "ncu on the slowest kernel", profile_parts),
)
# What a part takes on a card, about: it is begun if so much is left, s.
USUAL = {"kernels": 60.0, "bandwidth": 30.0, "jobs": 30.0, "probes": 30.0, "sanitizer": 90.0,
         "profile": 60.0}  # fmt: skip
# None takes more of a command than this, s.
MOST = 240.0


class Kit:
    """One call of it."""

    def __init__(self, options: argparse.Namespace, gpus: Gpus) -> None:
        self.options = options
        self.gpus = gpus
        self.out = pathlib.Path(options.out).resolve()
        self.began = time.monotonic()
        self.left: list[str] = []
        programs = pathlib.Path(options.programs or BUILT).resolve()
        self.parts: Parts = self.with_programs(programs)
        self.names: list[str] = [part.name for step in self.steps() for part in step.parts(self)]
        # By --parts: these alone, and again.
        self.named: set[str] = picked(options.parts, self.names)

    def with_programs(self, programs: pathlib.Path) -> Parts:
        given = self.options
        return Parts(programs, self.gpus, given.bandwidth, given.job, given.probes)

    def log(self, name: str) -> StepLog:
        number = [step.name for step in STEPS].index(name) + 1
        return StepLog(self.out / f"{number}-{name}.log")

    def entries(self, name: str) -> dict[str, Entry]:
        return self.log(name).entries()

    def steps(self) -> Iterator[Step]:
        asked = self.options.steps.split(",") if self.options.steps else []
        for step in STEPS:
            if not asked or step.name in asked:
                yield step

    def chosen(self, step: Step) -> Iterator[Part]:
        for part in step.parts(self):
            if not self.named or part.name in self.named:
                yield part

    def remaining(self) -> float:
        return float(self.options.budget) - (time.monotonic() - self.began)

    def why_not(self, step: Step, part: Part) -> str:
        """What the part lacks."""
        if step.name != "machine" and not self.gpus.names:
            return f"no GPU: {self.gpus.reason}"
        if part.missing or not part.after or (self.named and part.after not in self.named):
            return part.missing
        first = self.entries(step.name).get(part.after)
        became = {"failed": "failed", "cut short": "was cut short"}
        known = became.get(first.result) if first else None
        return f"the first job with NCCL {known}" if known else ""

    def take_earlier(self) -> None:
        """What another call has left, where this one has nothing."""
        self.out.mkdir(parents=True, exist_ok=True)
        if not self.options.earlier:
            return
        for file in sorted(pathlib.Path(self.options.earlier).glob("*.log")):
            if not (self.out / file.name).exists():
                shutil.copyfile(file, self.out / file.name)

    def find_programs(self) -> str:
        """Those that were built if they start here, else compiled ones; or why there are none."""
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
        why = self.find_programs()
        try:
            for step in self.steps():
                for part in self.chosen(step):
                    of_programs = "" if step.name == "machine" else why
                    self.do(step, part, self.why_not(step, part) or of_programs)
        finally:
            self.report()
        failed = [entry.name for entry in self.all_entries() if entry.result == "failed"]
        print(f"{self.out / 'report.md'}: {len(failed)} failed")
        if self.left:
            print(f"{len(self.left)} left for another call: {'; '.join(self.left)}")
        return 1 if failed else 0

    def do(self, step: Step, part: Part, missing: str) -> None:
        log = self.log(step.name)
        known = log.entries().get(part.name)
        if known and known.done and not self.options.again and not self.named:
            return
        if missing:
            log.note(part.name, Outcome("not run", missing))
            self.tell(part.name, "not run", missing)
            return
        usual = min(USUAL.get(step.name, LEAST), part.limit) * self.options.patience
        if self.remaining() < usual + LEAST:
            self.left.append(part.name)
            return
        outcome = self.begin(log, part)
        self.tell(part.name, outcome.result, outcome.figure)
        self.report()

    def begin(self, log: StepLog, part: Part) -> Outcome:
        own = min(part.limit, MOST) * self.options.patience
        limit = min(own, self.remaining() - LEAST)
        began = time.monotonic()
        with log.begin(part) as file:
            place = log.size()
            code, _ = call(part.command, limit, part.environment, output=file)
        outcome = part.outcome(code, log.said_since(place))
        if code == CUT_SHORT:
            late = f"it did not end within {limit:.0f} s"
            short = limit < own
            outcome = Outcome("cut short" if short else "failed", late)
            if short:
                self.left.append(part.name)
        log.end(part.name, outcome, time.monotonic() - began)
        return outcome

    @staticmethod
    def tell(name: str, result: str, figure: str) -> None:
        print(f"{name:<38} | {result:<9} | {figure}", flush=True)

    def all_entries(self) -> Iterator[Entry]:
        for step in STEPS:
            yield from self.entries(step.name).values()

    def report(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        known = {step.name: self.entries(step.name) for step in STEPS}
        text = first_hour_report.report(known, self.left)
        new = self.out / "report.md.new"
        new.write_text(text)
        new.replace(self.out / "report.md")

    def dry_run(self) -> int:
        """Says what `run` would do; nothing of it is begun."""
        why = gpu_programs.why_unusable(self.parts.programs)
        compiler = gpu_programs.compiler_of_programs()
        how = f"programs: those in {self.parts.programs}"
        if why:
            how = f"programs: {why}; {compiler or 'no g++'} would compile them"
        print(how)
        for number, step in enumerate(STEPS, 1):
            if step not in self.steps():
                continue
            print(f"\nstep {number}, {step.name}: {step.what}")
            for part in self.chosen(step):
                missing = self.why_not(step, part)
                print(f"  {part.name}: " + (f"missing: {missing}" if missing else "would run"))
                settings = [f"{name}={value}" for name, value in part.environment.items()]
                print(f"    {shlex.join([*settings, *part.command])}")
        return 0


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tests/gpu/first_hour.sh", description=__doc__.splitlines()[0]
    )
    parser.add_argument("command", choices=["run", "report", "pack"], nargs="?", default="run")
    parser.add_argument("to", nargs="?", default="", help="of pack: the folder")
    parser.add_argument("--dry-run", action="store_true", help="tells what run would do")
    parser.add_argument("--budget", type=float, default=480, help="seconds that run may take")
    parser.add_argument("--out", default=str(ROOT / "build" / "first_hour"), help="results")
    parser.add_argument("--earlier", default="", help="results of an earlier call, to go on from")
    parser.add_argument("--steps", default="", help="only these: machine,kernels,...")
    parser.add_argument("--again", action="store_true", help="also what is done")
    parser.add_argument(
        "--parts", default="", help="only these, also if done: NAME[,NAME], pieces of their names"
    )
    parser.add_argument("--programs", help="folder of built programs, else build/gpu or Bazel's")
    parser.add_argument(
        "--folder", default=str(ROOT / "build" / "run_gpu"), help="where they are compiled, else"
    )
    parser.add_argument("--bandwidth", default="", help="arguments for device_bandwidth")
    parser.add_argument("--job", default="", help="arguments for nccl_job")
    parser.add_argument("--probes", default="", help="arguments for device_probes")
    parser.add_argument("--patience", type=float, default=1.0, help="times all time limits")
    options = parser.parse_args(arguments)
    wrong = set(filter(None, options.steps.split(","))) - {step.name for step in STEPS}
    if wrong:
        parser.error(f"there is no step {', '.join(sorted(wrong))}")
    if (options.command == "pack") != bool(options.to):
        parser.error("pack takes a folder, nothing else does")
    return options


def main() -> int:
    """Ends with what has begun when it is asked to end."""
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
