"""Programs for keras.distribution: the results of a job are those of one process."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence

import jobs
import numpy as np
from prove import ROOT, Table

DISTRIBUTION = ROOT / "tests" / "python" / "distribution"
TRAINING = ROOT / "tests" / "python" / "parallel" / "training_run.py"
sys.path.append(str(DISTRIBUTION))
from comparison import TOLERANCES, difference, program_of, wrong_results  # noqa: E402

LIMIT = 1800
SEED = 3000
OLDEST = "keras==3.12.0"
# Without dependencies, because these would replace Keras and TensorFlow.
HUB = (
    "keras-hub==0.32.0",
    "kagglehub==1.0.1",
    "kagglesdk==0.1.28",
    "sentencepiece",
    "tokenizers",
    "regex",
    "tensorflow-text>=2.20.1",
    "tqdm",
    "requests",
    "pyyaml",
)
A_FEW = ("own_train_step", "uneven_batch_normalization", "transformer_decoder")


@contextlib.contextmanager
def installed(packages: Sequence[str]) -> Iterator[Mapping[str, str]]:
    """The environment of programs that import these packages from a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="prove.") as folder:
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder]
        done = subprocess.run([*pip, *packages], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        paths = [folder, os.environ.get("PYTHONPATH", "")]
        yield {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def said_by(command: Sequence[object], settings: Mapping[str, str], family: str = "openmpi") -> str:
    """The output of a command that must succeed."""
    environ = {name: text for name, text in os.environ.items() if name != "PYTHONSAFEPATH"}
    environ |= {"TF_CPP_MIN_LOG_LEVEL": "2", **settings}
    environ["TF_HVD_MPI_LIBRARY"] = str(jobs.LIBRARIES[family])
    done = subprocess.run(
        [*map(str, command)], cwd="/", env=environ, stdin=subprocess.DEVNULL, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


class Compared:
    """Programs, with the results of one process."""

    def __init__(
        self, table: Table, program: str, names: Sequence[str], settings: Mapping[str, str]
    ) -> None:
        self._table, self._names, self._settings = table, names, settings
        self._folder = tempfile.TemporaryDirectory(prefix="prove.")
        self._run = [sys.executable, DISTRIBUTION / program]
        path = pathlib.Path(self._folder.name) / "one"
        said_by([*self._run, path, "--one-process", *names], settings)
        self._expected = self._read(path, 0)
        self.failed = {program_of(name) for name in self._expected if name.endswith(":error")}
        """Programs that fail in one process, too: this Keras does not have what they use."""

    def _read(self, path: pathlib.Path, rank: int) -> dict[str, np.ndarray]:
        return dict(np.load(f"{path}.{rank}.npz"))

    def _without_failed(self, results: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        failed = {program_of(name) for name in results if name.endswith(":error")}
        assert failed <= self.failed, [str(results[f"{name}:error"]) for name in failed]
        return {name: each for name, each in results.items() if program_of(name) not in self.failed}

    def add(
        self, what: str, family: str, ranks: int, limits: Mapping[str, float] | None = None
    ) -> None:
        """Runs a job, and adds a row with the largest difference from one process.

        Args:
          limits: larger tolerances of some programs. Programs with one are not in the row.
        """
        path = pathlib.Path(self._folder.name) / f"{family}_{ranks}"
        nodes = {"TF_HVD_RANKS_PER_NODE": "2"} if ranks == 4 else {}
        run = [sys.executable, "-m", "tf_hvd_command", "run", "--keras", "-np", ranks]
        job = [*run, *self._run, path, *self._names]
        said_by(job, {**self._settings, **nodes}, family)
        expected, limits, largest = self._without_failed(self._expected), limits or {}, 0.0
        for rank in range(ranks):
            found = self._without_failed(self._read(path, rank))
            wrong = wrong_results(found, expected)
            wrong = {n: e for n, e in wrong.items() if e > limits.get(program_of(n), 0)}
            assert wrong == {}, f"rank {rank}: {wrong}"
            strict = [n for n in expected if program_of(n) not in {**TOLERANCES, **limits}]
            largest = max([largest, *(difference(found[n], expected[n]) for n in strict)])
        count = len({program_of(name) for name in expected})
        self._table.add(what, family, ranks, count, f"{largest:.1e}")

    def close(self) -> None:
        self._folder.cleanup()


def generated(table: Table, family: str, ranks: int, count: int, seed: int) -> None:
    """Runs generated programs, and adds a row."""
    run = [sys.executable, "-m", "tf_hvd_command", "run", "-np", ranks, sys.executable, TRAINING]
    arguments = ["--programs", count, "--seed", seed, "--api", "keras"]
    said = said_by([*run, *arguments], {}, family)
    ran = re.search(r"^(?:.* )?(\d+) of \1 training programs had", said, re.MULTILINE)
    assert ran, said
    table.add(f"generated programs, seed {seed}", family, ranks, ran[1], "")


def compared(
    table: Table,
    packages: Sequence[str],
    program: str,
    what: str,
    shapes: Sequence[tuple[str, int]],
    names: Sequence[str] = (),
    limits: Mapping[str, float] | None = None,
) -> list[str]:
    """Adds a row for each job. Returns the names of programs that fail in one process, too."""
    with installed(packages) if packages else contextlib.nullcontext({}) as settings:
        programs = Compared(table, program, names, settings)
        try:
            for family, ranks in shapes:
                programs.add(what, family, ranks, limits)
            return sorted(programs.failed)
        finally:
            programs.close()


def prove_keras(short: bool) -> Table:
    """The programs of the tests with more ranks, an old Keras and KerasHub; generated programs."""
    table = Table(
        "Each program trains a model in one process, and in a job. Weights, logs, predictions and "
        "metrics were compared on all ranks, in float64. The difference is the largest one, "
        "relative to 0.001 plus the value; programs with a tolerance in "
        "`tests/python/distribution/comparison.py` are not part of it. Generated programs have the "
        "tolerances of `./dev prove fuzz`.",
        ["programs", "MPI", "ranks", "count", "difference"],
    )
    shapes = [("openmpi", 2)] if short else [("openmpi", 4), ("mpich", 4), ("openmpi", 5)]
    failed = compared(
        table, (), "programs.py", "the tests' programs", shapes, A_FEW if short else ()
    )
    assert not failed, failed
    for number, (family, ranks) in enumerate(shapes):
        generated(table, family, ranks, 3 if short else 40, SEED + number)
    if not short:
        # This Keras adds an epsilon to the number of elements that a mask leaves.
        masked = dict.fromkeys(("masks", "uneven_masks", "masks_with_empty_ranks"), 1e-7)
        failed = compared(
            table, [OLDEST], "programs.py", "the tests' programs, Keras 3.12.0", [("openmpi", 2)],
            limits=masked,
        )  # fmt: skip
        if failed:
            table.claim += f" Keras 3.12.0 cannot run {', '.join(failed)} in one process either."
        failed = compared(table, HUB, "hub_programs.py", "models of KerasHub", [("openmpi", 2)])
        assert not failed, failed
    return table
