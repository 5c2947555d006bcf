"""Proofs that are programs of their own, with more to do than on every day."""

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
    """What it prints; an exit code is an error with all of it."""
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
        "Every seed is a random schedule; none has found a fault, and each mutant is noticed.",
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
    """A test that reads damaged data, as many rounds as it is told."""

    what: str
    test: str
    rounds: int


DAMAGED = (
    Damage("models, for strip-ops", "tests/strip/hostile_test.py::test_damaged_bytes", 10_000),
    Damage("recordings", "tests/observe/recording_test.py::test_a_damaged_file", 10_000),
    Damage("messages to an agent", "tests/elastic/protocol_test.py", 3000),
)
SEED = 2000


def prove_damage(table: Table, short: bool) -> None:
    """Adds what was read in damaged form: all of it was refused or read."""
    if not short:  # ./dev has run it, under the address sanitizer
        rounds, seed = (os.environ[f"TF_HVD_FUZZ_{name}"] for name in ("ROUNDS", "SEED"))
        table.add("messages of the agreement, damaged", "", "", rounds, seed)
    for what, test, rounds in DAMAGED:
        file, _, name = test.partition("::")
        count = str(rounds // 100 if short else rounds)
        # Hypothesis has an option of its own for the seed.
        run = [sys.executable, "-P", "-m", "pytest", "-q", f"--hypothesis-seed={SEED}"]
        environ = {"TF_HVD_FUZZ_ROUNDS": count, "TF_HVD_FUZZ_SEED": str(SEED)}
        run += ["--timeout=1800", file, *(["-k", name] if name else [])]
        said = output_of(run, {**environ, "PYTHONSAFEPATH": "1", "TF_CPP_MIN_LOG_LEVEL": "3"})
        assert " passed" in said, said
        table.add(f"{what}, damaged", "", "", count, SEED)


def prove_fuzz(short: bool) -> Table:
    """Random programs and trainings against what is right, and damaged data of all kinds."""
    table = Table(
        "Collectives gave what NumPy gives, and trainings what one worker has. Damaged data was "
        "refused, or read as what it is then, and nothing else happened.",
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
        table.add("programs of collectives", family, ranks, calls, seed)
        training = [PARALLEL / "training_run.py", "--programs", str(trainings), "--seed", seed]
        said = output_of([*run, *training], environ)
        assert f"{trainings} of {trainings} training programs gave" in said, said
        table.add("trainings", family, ranks, trainings, seed)
    prove_damage(table, short)
    return table


def prove_wheels(short: bool) -> Table:
    """The release's wheel with each minor of TensorFlow, installed as a user does, at 2 ranks."""
    table = Table(
        "The wheel was built, installed beside each TensorFlow into an environment of its own, and "
        "ran `dev_support/smoke.py` with 2 ranks.",
        ["TensorFlow", "wheel", "bytes"],
    )
    said = output_of([ROOT / "dev", "smoke", *([] if short else ["--release"])], {})
    found = re.findall(r"TensorFlow ([\d.]+), .*: dist/(\S+?\.whl)", said)
    assert [minor for minor, _ in found] == (["2.21"] if short else list(wheels.MINORS)), said
    for minor, wheel in found:
        table.add(minor, f"`{wheel}`", (ROOT / "dist" / wheel).stat().st_size)
    return table
