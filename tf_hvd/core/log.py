"""Logging for this package through absl.logging, which Keras and TensorFlow also use.

By default only warnings and errors are shown; `absl.logging.set_verbosity(absl.logging.INFO)` shows
more. Each line begins with its source, as in "tf_hvd, rank 1: ".
"""

import functools
from collections.abc import Callable
from typing import Any

from absl import logging


class _Who:
    """The prefix of this process's log lines; core/basics.py sets the rank."""

    prefix = "tf_hvd: "


def set_rank(rank: int | None) -> None:
    """Begin log lines with this rank from now on; None for no rank."""
    _Who.prefix = "tf_hvd: " if rank is None else f"tf_hvd, rank {rank}: "


def warning(text: str, *arguments: Any) -> None:
    logging.warning(_Who.prefix + text, *arguments)


def info(text: str, *arguments: Any) -> None:
    """Log `text % arguments` at INFO, which is not shown by default."""
    logging.info(_Who.prefix + text, *arguments)


def warn_once(text: str, *arguments: Any) -> None:
    """Log `text % arguments`, unless this process has already logged exactly that text."""
    _once(warning, text % arguments)


def info_once(text: str, *arguments: Any) -> None:
    _once(info, text % arguments)


# Bounded, because messages may name tensors: a program may give each tensor a new name.
@functools.lru_cache(maxsize=4096)
def _once(say: Callable[..., None], text: str) -> None:
    say("%s", text)


# A record then names the caller's line.
for _name in ("warning", "info", "warn_once", "info_once", "_once"):
    logging.ABSLLogger.register_frame_to_skip(__file__, _name)
