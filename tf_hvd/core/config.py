"""Settings that the package's Python code reads from the environment.

Only this module lists these settings and reads `os.environ` for a setting. The native library
has another table (base/config.cc). dev_support/config_page.py generates docs/config.md from both
tables.
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterator

from tf_hvd.core import contract

HOROVOD_PREFIX = "HOROVOD_"
"""Prefix of Horovod's variables."""


@dataclasses.dataclass(frozen=True)
class IntSetting:
    """An integer from the environment; `minimum` is the smallest legal value."""

    name: str
    default: int
    minimum: int
    meaning: str
    equal: bool = False  # whether init checks that it is the same on all ranks

    def read(self) -> int:
        """Return the current value in the environment, or the default."""
        text = os.environ.get(self.name, "").strip()
        if not text:
            return self.default
        try:
            value = int(text)
        except ValueError:
            value = self.minimum - 1
        if value < self.minimum:
            raise ValueError(
                f"{self.name}={text!r} is not a whole number of at least {self.minimum}; "
                f"unset it to get the default, {self.default}."
            )
        return value


@dataclasses.dataclass(frozen=True)
class ChoiceSetting:
    name: str
    default: str
    choices: tuple[str, ...]
    meaning: str
    equal: bool = False  # whether init checks that it is the same on all ranks

    def read(self) -> str:
        """Return the current value in the environment, or the default."""
        text = os.environ.get(self.name, "").strip() or self.default
        if text not in self.choices:
            raise ValueError(
                f"{self.name}={text!r} is not one of {', '.join(self.choices)}; "
                f"unset it to get the default, {self.default}."
            )
        return text


@dataclasses.dataclass(frozen=True)
class TextSetting:
    name: str
    meaning: str
    default: str = ""
    equal: bool = False  # whether init checks that it is the same on all ranks

    def read(self) -> str:
        return os.environ.get(self.name, "").strip() or self.default


BUCKET_BYTES = IntSetting(
    name="TF_HVD_BUCKET_BYTES",
    default=32 << 20,
    minimum=1,
    meaning=(
        "Maximum size in bytes of a bucket: the gradients that the optimizer or the tape sends in "
        "one collective. A larger gradient gets a separate bucket. Small models use smaller "
        "buckets: an eighth of all gradients, but at least 1 MiB."
    ),
    equal=True,
)

SPARSE = ChoiceSetting(
    name="TF_HVD_SPARSE",
    default="auto",
    choices=("auto", "rows", "dense"),
    meaning=(
        "How to reduce IndexedSlices in calls without a `sparse=` argument. `rows` sends rows, "
        "`dense` sends the whole tensor, and `auto` sends whichever has fewer bytes."
    ),
    equal=True,
)

CHECK_WEIGHTS_STEPS = IntSetting(
    name="TF_HVD_CHECK_WEIGHTS_STEPS",
    default=0,
    minimum=0,
    meaning=(
        "Number of updates between two weight checks. In a check, a distributed Keras optimizer "
        "compares the weights of all ranks and stops training if they differ. 0: no checks. The "
        "value is read when the optimizer is wrapped. In a loop with a tape, call "
        "`tf_hvd.check_weights` instead."
    ),
    equal=True,
)

GUARD = ChoiceSetting(
    name="TF_HVD_GUARD",
    default="on",
    choices=("on", "off"),
    meaning=(
        "`on`: stop with an error if the ranks do not train the same model together. Applies to "
        "training with Keras or v1 optimizers. `off`: do not check this."
    ),
    equal=True,
)

VERBOSE_RANKS = ChoiceSetting(
    name="TF_HVD_VERBOSE_RANKS",
    default="0",
    choices=("0", "all"),
    meaning=(
        "Ranks that show the progress of Keras' `fit`, `evaluate` and `predict` if `verbose=` is "
        "on. `0`: only rank 0. `all`: every rank."
    ),
)

COMMIT_DIR = TextSetting(
    name="TF_HVD_COMMIT_DIR",
    meaning=(
        "Folder, shared by all hosts, in which an elastic job saves commits. The job can "
        "then continue even if all of its machines are lost. Empty: commits are not saved to a "
        "shared folder."
    ),
    equal=True,
)

COMMIT_DIR_EVERY = IntSetting(
    name="TF_HVD_COMMIT_DIR_EVERY",
    default=10,
    minimum=1,
    meaning=(
        "How often to save to `TF_HVD_COMMIT_DIR`, in commits. With 10, an elastic job saves "
        "every tenth commit."
    ),
    equal=True,
)

COMMIT_DIR_DAMAGED = ChoiceSetting(
    name="TF_HVD_COMMIT_DIR_DAMAGED",
    default="warn",
    choices=("warn", "error"),
    meaning=(
        "How an elastic job reacts to a damaged commit in `TF_HVD_COMMIT_DIR`. `warn`: log a "
        "warning and continue from an older commit. `error`: do not start the job."
    ),
    equal=True,
)

SETTINGS = (
    *(BUCKET_BYTES, SPARSE, CHECK_WEIGHTS_STEPS, GUARD, VERBOSE_RANKS),
    *(COMMIT_DIR, COMMIT_DIR_EVERY, COMMIT_DIR_DAMAGED),
)


def equal_settings() -> dict[str, str]:
    """Return the settings that must be the same on all ranks, by name.

    Raises:
      ValueError: a setting is invalid.
    """
    return {setting.name: str(setting.read()) for setting in SETTINGS if setting.equal}


def mark_children(mark: str) -> None:
    """Mark the processes that this process starts from now on as its children, unless `mark` is "".

    The children inherit the launcher's variables, but must not take this rank's place.
    """
    if mark:
        os.environ[contract.STARTED_BY] = mark


def leave_python_path(folder: str) -> None:
    """Remove a folder from PYTHONPATH, for the processes that this one starts from now on."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path != folder)


def tensorflows_threads() -> list[str]:
    """Return which of TensorFlow's two thread counts, INTRA and INTER, the environment sets."""
    return [kind for kind in ("INTRA", "INTER") if os.environ.get(f"TF_NUM_{kind}OP_THREADS")]


@contextlib.contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """Set the environment variables, except those that are None, within the block."""
    values = {name: value for name, value in kwargs.items() if value is not None}
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def horovod_environ() -> dict[str, str]:
    """Return Horovod's variables in the environment."""
    names = [name for name in os.environ if name.startswith(HOROVOD_PREFIX)]
    return {name: os.environ[name] for name in names}


def launcher_job() -> str:
    """Return the name of this rank's `tf_hvd run` job; empty under another launcher.

    Not a setting: the launcher names the job.
    """
    return os.environ.get(contract.JOB, "")


def launched_rank() -> int | None:
    """Return the launcher's number for this process or the rank that started it; None if unknown.

    Not a setting: `tf_hvd run` sets it for each rank. If only some of the ranks form the job
    (`init(comm)`), this number may differ from `rank()`.
    """
    return _number(contract.RANK)


def elastic_start() -> int | None:
    """Return which start of its elastic job began this process, by number; None in other jobs.

    Not a setting: `tf_hvd run` sets it for each rank.
    """
    return _number(contract.START)


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else None


def is_child_of_rank() -> bool:
    """Return whether this process is, or was started by, a rank that had joined its job."""
    return bool(os.environ.get(contract.STARTED_BY))


def alone() -> bool:
    """Return whether `TF_HVD_ALONE=1` makes this process rank 0 of 1 under any launcher."""
    return os.environ.get(contract.ALONE_VARIABLE, "").strip() == "1"
