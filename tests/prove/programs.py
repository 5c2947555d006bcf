"""Proofs that run separate programs, with more work than in the daily tests."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jobs
from prove import ROOT, Table

from tf_hvd.core import wheels

BUILT = ROOT / "bazel-bin" / "tests"
PARALLEL = ROOT / "tests" / "python" / "parallel"


def output_of(command: Sequence[str | pathlib.Path], environ: Mapping[str, str]) -> str:
    """The program's output; raises with the output if the exit code is not 0."""
    done = subprocess.run(
        [*map(str, command)],
        cwd=ROOT,
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def prove_seeds(short: bool) -> Table:
    """The protocol's simulation, and random programs on software GPUs."""
    table = Table(
        "Each seed selects a random schedule. No seed revealed a fault. Each mutant is a "
        "deliberate bug. The tests detected every mutant.",
        ["test", "seeds", "faults", "s"],
    )
    last = 300 if short else 8000
    for name in ("runtime/protocol/protocol_test", "gpu/gpu_program_test"):
        started = time.monotonic()
        output_of([BUILT / name, f"--seeds=0:{last}"], {})
        table.add(name, f"0 to {last - 1}", 0, f"{time.monotonic() - started:.0f}")
    table.add("mutants", os.environ["PROVE_MUTANTS"], 0, "")
    return table


class Damage(NamedTuple):
    """A test that reads damaged data, with a configurable number of rounds."""

    what: str
    test: str
    rounds: int


DAMAGED = (
    Damage("models for strip-ops", "tests/strip/hostile_test.py::test_damaged_bytes", 10_000),
    Damage("recordings", "tests/observe/recording_test.py::test_a_damaged_file", 10_000),
    Damage("messages to an agent", "tests/elastic/protocol_test.py", 3000),
)
SEED = 2000


def prove_damage(table: Table, short: bool) -> None:
    """Adds the damaged data that was read; all of it was rejected or read."""
    if not short:  # ./dev has already run it, under the address sanitizer
        rounds, seed = (os.environ[f"TF_HVD_FUZZ_{name}"] for name in ("ROUNDS", "SEED"))
        table.add("damaged agreement messages", "", "", rounds, seed)
    for what, test, rounds in DAMAGED:
        file, _, name = test.partition("::")
        count = str(rounds // 100 if short else rounds)
        # Hypothesis has a separate option for the seed.
        run = [sys.executable, "-P", "-m", "pytest", "-q", f"--hypothesis-seed={SEED}"]
        environ = {"TF_HVD_FUZZ_ROUNDS": count, "TF_HVD_FUZZ_SEED": str(SEED)}
        run += ["--timeout=1800", file, *(["-k", name] if name else [])]
        said = output_of(run, {**environ, "PYTHONSAFEPATH": "1", "TF_CPP_MIN_LOG_LEVEL": "3"})
        assert " passed" in said, said
        table.add(f"damaged {what}", "", "", count, SEED)


def prove_fuzz(short: bool) -> Table:
    """Random programs and trainings against expected results, and damaged data of all kinds."""
    table = Table(
        "Every collective returned the same result as NumPy. Every training run had the same "
        "result as a run with one worker. Damaged data was rejected, or was read if it was still "
        "valid. The damage had no other effect.",
        ["what", "MPI", "ranks", "how many", "seed"],
    )
    shapes = [("openmpi", 2)] if short else [(f, n) for f in jobs.LIBRARIES for n in (2, 3, 4)]
    calls, trainings = (20, 2) if short else (1000, 40)
    for number, (family, ranks) in enumerate(shapes):
        seed = str(SEED + number)
        environ = {
            "TF_HVD_MPI_LIBRARY": str(jobs.LIBRARIES[family]),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "PYTHONSAFEPATH": "",
            **({"TF_HVD_RANKS_PER_NODE": "2"} if ranks == 4 else {}),
        }
        run = [sys.executable, "-P", "-m", "tf_hvd_command", "run", "-np", str(ranks)]
        run += [sys.executable]
        programs = [PARALLEL / "programs_run.py", "--programs", str(calls), "--seed", seed]
        said = output_of([*run, *programs], environ)
        assert re.search(rf"^{calls} programs gave what NumPy gives", said, re.MULTILINE), said
        table.add("programs with collectives", family, ranks, calls, seed)
        training = [PARALLEL / "training_run.py", "--programs", str(trainings), "--seed", seed]
        said = output_of([*run, *training], environ)
        assert f"{trainings} of {trainings} training programs had" in said, said
        table.add("training runs", family, ranks, trainings, seed)
    prove_damage(table, short)
    return table


def prove_wheels(short: bool) -> Table:
    """The release's wheel with each minor version of TensorFlow, installed like a user would."""
    table = Table(
        "The wheel was built, and installed with each TensorFlow version in a separate "
        "environment. In each environment, `dev_support/smoke.py` ran with 2 ranks.",
        ["TensorFlow", "wheel", "bytes"],
    )
    said = output_of([ROOT / "dev", "smoke", *([] if short else ["--release"])], {})
    found = re.findall(r"TensorFlow ([\d.]+), .*: dist/(\S+?\.whl)", said)
    assert [minor for minor, _ in found] == (["2.21"] if short else list(wheels.MINORS)), said
    for minor, wheel in found:
        table.add(minor, f"`{wheel}`", (ROOT / "dist" / wheel).stat().st_size)
    return table
