"""Settings of the Python side that come from the environment.

The one table of them, and the only place in the package's Python that reads
`os.environ` for a setting. The native side has a table of its own
(runtime/base/config.cc); `python -m tf_hvd.core.config --markdown` prints both, which is
what docs/config.md holds.
"""

import argparse
import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator

from tf_hvd.core import commit_store, horovod_variables

_STARTED_BY = "TF_HVD_STARTED_BY"  # as in runtime/base/config.cc


@dataclasses.dataclass(frozen=True)
class IntSetting:
    """An integer from the environment; `minimum` is the smallest legal value."""

    name: str
    default: int
    minimum: int
    meaning: str
    equal: bool = False  # on all ranks: init compares it

    def read(self) -> int:
        """The value in the environment now, or the default.

        Raises:
          ValueError: the text is not an integer, or is below `minimum`.
        """
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
    """One of a few words from the environment."""

    name: str
    default: str
    choices: tuple[str, ...]
    meaning: str
    equal: bool = False  # on all ranks: init compares it

    def read(self) -> str:
        """The value in the environment now, or the default.

        Raises:
          ValueError: the text is none of the words.
        """
        text = os.environ.get(self.name, "").strip() or self.default
        if text not in self.choices:
            raise ValueError(
                f"{self.name}={text!r} is not one of {', '.join(self.choices)}; "
                f"unset it to get the default, {self.default}."
            )
        return text


@dataclasses.dataclass(frozen=True)
class TextSetting:
    """A text from the environment, such as a path."""

    name: str
    meaning: str
    default: str = ""
    equal: bool = False  # on all ranks: init compares it

    def read(self) -> str:
        """The value in the environment now, or the default."""
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

ELASTIC_STANDBY = ChoiceSetting(
    name="TF_HVD_ELASTIC_STANDBY",
    default="on",
    choices=("on", "off"),
    meaning=(
        "Whether each machine of an elastic job has a process that has loaded TensorFlow and "
        "becomes the ranks of a restart (docs/elastic.md)."
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

SETTINGS = (
    *(BUCKET_BYTES, SPARSE, CHECK_WEIGHTS_STEPS, GUARD, VERBOSE_RANKS),
    *(ELASTIC_STANDBY, COMMIT_DIR, COMMIT_DIR_EVERY),
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
        os.environ[_STARTED_BY] = mark


def bucket_bytes() -> int:
    """Size limit of a gradient bucket, in bytes (`TF_HVD_BUCKET_BYTES`)."""
    return BUCKET_BYTES.read()


def sparse() -> str:
    """How IndexedSlices are reduced by default (`TF_HVD_SPARSE`)."""
    return SPARSE.read()


def check_weights_steps() -> int:
    """Updates between two comparisons of the weights (`TF_HVD_CHECK_WEIGHTS_STEPS`)."""
    return CHECK_WEIGHTS_STEPS.read()


def guard() -> str:
    """Whether training is watched, with Keras and v1 optimizers: "on" or "off" (`TF_HVD_GUARD`)."""
    return GUARD.read()


def verbose_ranks() -> str:
    """Which ranks show Keras' progress: "0" or "all" (`TF_HVD_VERBOSE_RANKS`)."""
    return VERBOSE_RANKS.read()


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
    """Horovod's variables that are set now."""
    names = [name for name in os.environ if name.startswith(horovod_variables.PREFIX)]
    return {name: os.environ[name] for name in names}


def launcher_folder() -> str:
    """The folder in which `tf_hvd run` hears of its ranks; empty under another launcher.

    Not a setting: the launcher makes it and tells its name.
    """
    return os.environ.get("TF_HVD_LAUNCHER_FOLDER", "")


def launched_rank() -> int | None:
    """Which of the launcher's ranks this process is, or was started by; None: it has not said.

    Not a setting: `tf_hvd run` tells it each rank. In a job of a part of the ranks (`init(comm)`)
    it is another number than `rank()`.
    """
    text = os.environ.get("TF_HVD_LAUNCHED_RANK", "")
    return int(text) if text.isdigit() else None


def elastic_job() -> tuple[str, int] | None:
    """The token of the elastic job that this process is a rank of, and which start of it; or None.

    Not a setting: `tf_hvd run` tells it each rank.
    """
    token, colon, number = os.environ.get(commit_store.JOB_VARIABLE, "").partition(":")
    return (token, int(number)) if colon and number.isdigit() else None


def is_child_of_rank() -> bool:
    """Whether a rank that had joined its job started this process; true also of that rank."""
    return bool(os.environ.get(_STARTED_BY))


def alone() -> bool:
    """Whether this process is rank 0 of 1 whatever its launcher says (`TF_HVD_ALONE=1`)."""
    return os.environ.get("TF_HVD_ALONE", "").strip() == "1"


def python_markdown() -> str:
    """The table of this module as Markdown."""
    rows = [
        f"| `{s.name}` | {s.default} | {s.meaning} | {'yes' if s.equal else 'no'} |"
        for s in SETTINGS
    ]
    head = ["| variable | default | meaning | equal on all ranks |", "|---|---|---|---|"]
    return "\n".join([*head, *rows]) + "\n"


def markdown() -> str:
    """The whole of docs/config.md: the native side's table, then this one."""
    # Imported here: reading a setting must not need the native library.
    from tf_hvd.core import _native

    return (
        f"{_native.config_markdown().strip()}\n\n"
        "## Python\n\n"
        "Read by the Python side, when a collective is called or put in a graph; `init()` compares "
        "the values that they have then.\n\n"
        f"{python_markdown()}\n"
        "## Log lines\n\n"
        "The Python side logs through absl, as Keras and TensorFlow do, with absl's format and "
        "verbosity. Lines of the native library look different, `tf_hvd warning, rank 1 (host): "
        "...`, and obey `HOROVOD_LOG_LEVEL`: they come from threads that run without Python, even "
        "while it is blocked in `init()` or ending, and so are written straight to standard error, "
        "each line in one piece.\n\n"
        "## Horovod's variables\n\n"
        "Every one that Horovod 0.28.1 reads. `init` warns, once and on rank 0, of what is set and "
        "not honoured, and of names that Horovod does not have.\n\n"
        f"{horovod_variables.markdown()}\n"
        "This page is made by `python -m tf_hvd.core.config --markdown`; a test compares the two.\n"
    )


def main(argv: list[str]) -> int:
    """Prints the tables. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tf_hvd.core.config", description=__doc__)
    parser.add_argument(
        "--markdown", action="store_true", required=True, help="print docs/config.md"
    )
    parser.parse_args(argv)
    sys.stdout.write(markdown())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
