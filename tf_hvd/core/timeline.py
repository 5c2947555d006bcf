"""The timeline of this rank: begun and ended while a program runs (docs/timeline.md)."""

import os

from tf_hvd.core import _native, basics


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Writes what this rank's collectives do, and when, to a file, until `stop_timeline`.

    Each rank that calls it writes a file of its own: rank 0 `file_path`, rank 3 of `trace.json`
    `trace.rank-3.json`. Nothing waits for the disk: what it is too slow for is left out, and
    counted in the file. `HOROVOD_TIMELINE` does it from `init` on, on all ranks.

    Args:
      file_path: the file, which is written over: Chrome's JSON, with the names that Horovod's
        timeline has. ui.perfetto.dev opens it.
      mark_cycles: whether to mark when calls were put in order.

    Raises:
      ValueError: before `init`; a timeline is being written; the file cannot be written to.
    """
    basics.rank()
    code, text = _native.start_timeline(os.fspath(file_path), mark_cycles)
    if code:
        raise ValueError(text)


def stop_timeline() -> None:
    """Ends this rank's timeline; does nothing if there is none. ValueError before `init`."""
    basics.rank()
    _native.library.tf_hvd_stop_timeline()
