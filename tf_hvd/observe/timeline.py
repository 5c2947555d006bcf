"""Horovod's timeline, which this version does not write."""

from tf_hvd.core import basics, log


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Logs a warning: no timeline is written by this version.

    TensorFlow's profiler shows the collectives as it shows any op.

    Args:
      file_path: where Horovod would write to.
      mark_cycles: whether Horovod would mark its cycles.

    Raises:
      ValueError: before `init`.
    """
    del mark_cycles
    if basics.rank() == 0:
        log.warning(
            "start_timeline(%r) writes nothing: this version of tf_hvd has no timeline. "
            "tf.profiler.experimental.start() shows the collectives as it shows any op.",
            file_path,
        )


def stop_timeline() -> None:
    """Does nothing: no timeline is written. ValueError before `init`."""
    basics.rank()
