"""The package's log lines: through absl.logging, as Keras' and TensorFlow's.

One format and one verbosity for all of them: `absl.logging.set_verbosity(absl.logging.INFO)`
shows more than warnings. In front of each line stands who says it, "tf_hvd, rank 1: ".
"""

from typing import Any

from absl import logging


def who() -> str:
    """What a line of this process begins with."""
    # When something is to be said, the library is there, or there is no job.
    from tf_hvd.core import basics

    in_a_job = basics.is_initialized() and basics.size() > 1
    return f"tf_hvd, rank {basics.rank()}: " if in_a_job else "tf_hvd: "


def warning(text: str, *arguments: Any) -> None:
    """Logs `text % arguments`."""
    logging.warning(who() + text, *arguments)


def info(text: str, *arguments: Any) -> None:
    """Logs `text % arguments`; not shown by default."""
    logging.info(who() + text, *arguments)


# The line that a record names is the caller's.
for _function in (warning, info):
    logging.ABSLLogger.register_frame_to_skip(__file__, _function.__name__)
