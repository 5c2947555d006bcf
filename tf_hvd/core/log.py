"""The package's log lines: through absl.logging, as Keras' and TensorFlow's.

One format and one verbosity for all of them: `absl.logging.set_verbosity(absl.logging.INFO)`
shows more than warnings. In front of each line stands who says it, "tf_hvd, rank 1: ".
"""

import functools
from collections.abc import Callable
from typing import Any

from absl import logging


class _Who:
    """The beginning of this process's lines; core/basics.py knows the job."""

    prefix = "tf_hvd: "


def set_rank(rank: int | None) -> None:
    """Begin lines with this rank from now on; without one if None."""
    _Who.prefix = "tf_hvd: " if rank is None else f"tf_hvd, rank {rank}: "


def warning(text: str, *arguments: Any) -> None:
    logging.warning(_Who.prefix + text, *arguments)


def info(text: str, *arguments: Any) -> None:
    """Logs `text % arguments`; not shown by default."""
    logging.info(_Who.prefix + text, *arguments)


def warn_once(text: str, *arguments: Any) -> None:
    """Logs `text % arguments`, if this process has not said exactly that before."""
    _once(warning, text % arguments)


def info_once(text: str, *arguments: Any) -> None:
    _once(info, text % arguments)


# Bounded, for what is said of tensors: a program may give each of them a new name.
@functools.lru_cache(maxsize=4096)
def _once(say: Callable[..., None], text: str) -> None:
    say("%s", text)


# The line that a record names is the caller's.
for _name in ("warning", "info", "warn_once", "info_once", "_once"):
    logging.ABSLLogger.register_frame_to_skip(__file__, _name)
