"""Runs parts without results step by step until the time is over, and reports each one.

Each step has a file (step_log.py), from which the next call continues.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import pathlib
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gpu_machine import CUT_SHORT, Gpus, call
from gpu_parts import Part
from gpu_programs import Outcome
from step_log import Entry, StepLog

# With less time than this left, nothing is started; also the reserve for the rest of a call, in s.
LEAST = 2.0


@dataclasses.dataclass(frozen=True)
class Step:
    """A step. Its file is NUMBER-NAME.log."""

    name: str
    what: str
    parts: Callable[[Any], list[Part]]  # of a Runner
    usual: float = LEAST  # usual time of a part on a GPU, s: the part starts if this much is left


def tell(name: str, result: str, figure: str) -> None:
    print(f"{name:<38} | {result:<9} | {figure}", flush=True)


class Runner:
    """One call. `options`: budget, earlier, patience."""

    def __init__(
        self, options: argparse.Namespace, gpus: Gpus, steps: Sequence[Step], out: pathlib.Path
    ) -> None:
        self.options = options
        self.gpus = gpus
        self.known_steps = steps
        self.out = out.resolve()
        self.began = time.monotonic()
        self.left: list[str] = []
        self.most = math.inf  # limit for one part, s
        # Steps to run; of their parts only these, even if done.
        self.asked: list[str] = [step.name for step in steps]
        self.named: set[str] = set()

    def log(self, name: str) -> StepLog:
        number = [step.name for step in self.known_steps].index(name) + 1
        return StepLog(self.out / f"{number}-{name}.log")

    def entries(self, name: str) -> dict[str, Entry]:
        return self.log(name).entries()

    def all_entries(self) -> dict[str, dict[str, Entry]]:
        return {step.name: self.entries(step.name) for step in self.known_steps}

    def steps(self) -> Iterator[Step]:
        yield from (step for step in self.known_steps if step.name in self.asked)

    def chosen(self, step: Step) -> Iterator[Part]:
        for part in step.parts(self):
            if not self.named or part.name in self.named:
                yield part

    def remaining(self) -> float:
        return float(self.options.budget) - (time.monotonic() - self.began)

    def why_not(self, step: Step, part: Part) -> str:
        """The reason why the part cannot run."""
        if not self.gpus.names:
            return f"no GPU: {self.gpus.reason}"
        return part.missing

    def text(self) -> str:
        """Return the report."""
        raise NotImplementedError

    def report(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        new = self.out / "report.md.new"
        new.write_text(self.text())
        new.replace(self.out / "report.md")

    def take_earlier(self) -> None:
        """Copy results of an earlier call where this one has none."""
        self.out.mkdir(parents=True, exist_ok=True)
        if not self.options.earlier:
            return
        for file in sorted(pathlib.Path(self.options.earlier).glob("*.log")):
            if not (self.out / file.name).exists():
                shutil.copyfile(file, self.out / file.name)

    def run(self) -> int:
        """Run all steps; return 1 if a part failed."""
        self.take_earlier()
        try:
            for step in self.steps():
                for part in self.chosen(step):
                    self.do(step, part)
        finally:
            self.report()
        found = [entry for entries in self.all_entries().values() for entry in entries.values()]
        failed = sum(entry.result == "failed" for entry in found)
        print(f"{self.out / 'report.md'}: {failed} failed")
        if self.left:
            print(f"{len(self.left)} left for another call: {'; '.join(self.left)}")
        return 1 if failed else 0

    def do(self, step: Step, part: Part) -> None:
        log = self.log(step.name)
        known = log.entries().get(part.name)
        if known and known.done and not self.named:
            return
        missing = self.why_not(step, part)
        if missing:
            log.note(part.name, Outcome("not run", missing))
            tell(part.name, "not run", missing)
            return
        usual = min(step.usual, part.limit) * self.options.patience
        if self.remaining() < usual + LEAST:
            self.left.append(part.name)
            return
        outcome = self.begin(log, part)
        tell(part.name, outcome.result, outcome.figure)
        self.report()

    def begin(self, log: StepLog, part: Part) -> Outcome:
        own = min(part.limit, self.most) * self.options.patience
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

    def dry_run(self) -> int:
        """Print what `run` would do, without starting anything."""
        for number, step in enumerate(self.known_steps, 1):
            if step.name not in self.asked:
                continue
            print(f"\nstep {number}, {step.name}: {step.what}")
            for part in self.chosen(step):
                missing = self.why_not(step, part)
                print(f"  {part.name}: " + (f"missing: {missing}" if missing else "would run"))
                settings = [f"{name}={value}" for name, value in part.environment.items()]
                print(f"    {shlex.join([*settings, *part.command])}")
        return 0
