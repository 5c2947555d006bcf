"""Functions that start and stop one rank's timeline while a program runs."""

import os

from tf_hvd.core import _native, basics


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Start recording in a file when each of this rank's collectives runs.

    Recording ends with `stop_timeline`. Each rank that calls `start_timeline` writes its own file.
    If `file_path` is `trace.json`, rank 0 writes `trace.json` and rank 3 writes
    `trace.rank-3.json`. Collectives never wait for the disk. If the disk is too slow, events are
    dropped, and the file contains the number of dropped events. To start a timeline on all ranks
    at `init`, set `HOROVOD_TIMELINE`.

    Args:
      file_path: path of the file to write; an existing file is overwritten. The file has Chrome's
        trace format with Horovod's event names; ui.perfetto.dev can open it.
      mark_cycles: whether to mark each cycle of the runtime, in which the ranks agree on the order
        of calls; False by default.

    Raises:
      ValueError: `init` was not called, a timeline is already being written, or the file cannot be
        written.

    Example:
      hvd.start_timeline("timeline.json")
      hvd.allreduce(tf.ones([2]))
      hvd.stop_timeline()
    """
    basics.rank()
    code, text = _native.start_timeline(os.fspath(file_path), mark_cycles)
    if code:
        raise ValueError(text)


def stop_timeline() -> None:
    """Stop this rank's timeline, if one is being written. Raises ValueError before `init`.

    Example:
      hvd.start_timeline("another.json")
      hvd.stop_timeline()
    """
    basics.rank()
    _native.library.tf_hvd_stop_timeline()
