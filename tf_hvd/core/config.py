"""Settings of the Python side that come from the environment.

The one table of them, and the only place in the package's Python that reads
`os.environ` for a setting. The native side has a table of its own
(base/config.cc); dev_support/config_page.py makes docs/config.md from both.
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterator

from tf_hvd.core import contract

HOROVOD_PREFIX = "HOROVOD_"
"""Horovod's variables begin with it."""


@dataclasses.dataclass(frozen=True)
class IntSetting:
    """An integer from the environment; `minimum` is the smallest legal value."""

    name: str
    default: int
    minimum: int
    meaning: str
    equal: bool = False  # on all ranks: init compares it

    def read(self) -> int:
        """The value in the environment now, or the default."""
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
    equal: bool = False  # on all ranks: init compares it

    def read(self) -> str:
        """The value in the environment now, or the default."""
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
    equal: bool = False  # on all ranks: init compares it

    def read(self) -> str:
        return os.environ.get(self.name, "").strip() or self.default


BUCKET_BYTES = IntSetting(
    name="TF_HVD_BUCKET_BYTES",
    default=32 << 20,
    minimum=1,
    meaning=(
        "The most bytes of gradients that the optimizer and the tape put in one bucket (one "
        "collective); a larger gradient has a bucket of its own. Small models have smaller "
        "buckets: an eighth of all gradients, 1 MiB at least."
    ),
    equal=True,
)

SPARSE = ChoiceSetting(
    name="TF_HVD_SPARSE",
    default="auto",
    choices=("auto", "rows", "dense"),
    meaning=(
        "How IndexedSlices are reduced where `sparse=` is not given: `rows` sends rows, `dense` "
        "the whole tensor, `auto` what moves fewer bytes (docs/sparse.md)."
    ),
    equal=True,
)

CHECK_WEIGHTS_STEPS = IntSetting(
    name="TF_HVD_CHECK_WEIGHTS_STEPS",
    default=0,
    minimum=0,
    meaning=(
        "A distributed Keras optimizer compares the ranks' weights every so many updates and stops "
        "if they differ; 0: never. Read when the optimizer is wrapped; a loop with a tape calls "
        "`tf_hvd.keras.check_weights` itself."
    ),
    equal=True,
)

GUARD = ChoiceSetting(
    name="TF_HVD_GUARD",
    default="on",
    choices=("on", "off"),
    meaning=(
        "Whether training that does not train one model on all ranks is stopped: Keras "
        "(docs/keras.md) and v1 optimizers (docs/optimizers.md)."
    ),
    equal=True,
)

VERBOSE_RANKS = ChoiceSetting(
    name="TF_HVD_VERBOSE_RANKS",
    default="0",
    choices=("0", "all"),
    meaning=(
        "Which ranks show the progress of Keras' `fit`, `evaluate` and `predict`: rank 0 alone, "
        "whatever `verbose=` says, or all that are asked to (docs/keras.md)."
    ),
)

COMMIT_DIR = TextSetting(
    name="TF_HVD_COMMIT_DIR",
    meaning=(
        "A folder that all hosts share, to which an elastic job writes commits, so that it can go "
        "on when all its machines were lost (docs/elastic.md). Empty: none."
    ),
    equal=True,
)

COMMIT_DIR_EVERY = IntSetting(
    name="TF_HVD_COMMIT_DIR_EVERY",
    default=10,
    minimum=1,
    meaning=(
        "Every so many commits, one of an elastic job is also written to "
        "`TF_HVD_COMMIT_DIR` (docs/elastic.md)."
    ),
    equal=True,
)

COMMIT_DIR_DAMAGED = ChoiceSetting(
    name="TF_HVD_COMMIT_DIR_DAMAGED",
    default="warn",
    choices=("warn", "error"),
    meaning=(
        "What an elastic job makes of a damaged commit in `TF_HVD_COMMIT_DIR`: it says so and goes "
        "on from an older one, or it does not start (docs/elastic.md)."
    ),
    equal=True,
)

SETTINGS = (
    *(BUCKET_BYTES, SPARSE, CHECK_WEIGHTS_STEPS, GUARD, VERBOSE_RANKS),
    *(COMMIT_DIR, COMMIT_DIR_EVERY, COMMIT_DIR_DAMAGED),
)


def equal_settings() -> dict[str, str]:
    """What must be equal on all ranks, by name.

    Raises:
      ValueError: a setting is invalid.
    """
    return {setting.name: str(setting.read()) for setting in SETTINGS if setting.equal}


def mark_children(mark: str) -> None:
    """Tells the processes that this one starts from now on who did; "" tells nothing.

    They have the launcher's variables too, and must not take this rank's place.
    """
    if mark:
        os.environ[contract.STARTED_BY] = mark


@contextlib.contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """Sets environment variables, those that are not None, until the block ends."""
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


def horovods() -> dict[str, str]:
    names = [name for name in os.environ if name.startswith(HOROVOD_PREFIX)]
    return {name: os.environ[name] for name in names}


def launcher_job() -> str:
    """The job of the `tf_hvd run` that hears this rank; empty under another launcher.

    Not a setting: the launcher names the job.
    """
    return os.environ.get(contract.JOB, "")


def launched_rank() -> int | None:
    """Which of the launcher's ranks this process is, or was started by; None: it has not said.

    Not a setting: `tf_hvd run` tells it each rank. In a job of a part of the ranks (`init(comm)`)
    it is another number than `rank()`.
    """
    return _number(contract.RANK)


def elastic_start() -> int | None:
    """Which start of its elastic job this process is of; None if it is of none.

    Not a setting: `tf_hvd run` tells it each rank.
    """
    return _number(contract.START)


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else None


def is_child_of_rank() -> bool:
    """Whether a rank that had joined its job started this process; true also of that rank."""
    return bool(os.environ.get(contract.STARTED_BY))


def alone() -> bool:
    """Whether this process is rank 0 of 1 whatever its launcher says (`TF_HVD_ALONE=1`)."""
    return os.environ.get(contract.ALONE_VARIABLE, "").strip() == "1"
