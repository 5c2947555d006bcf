"""What a rank tells the `tf_hvd run` that started it; see contract.py."""

import os
import time

from tf_hvd.core import config, contract, messages


def tell_joined(rank: int) -> None:
    """Lets the launcher know that this rank has joined the job; `init` calls it when it has.

    And in which shared memory it may leave something if it is killed: the launcher clears it. A
    process with `TF_HVD_ALONE=1` joins none, and says that: it is not the rank 0 that it is to
    itself.

    Args:
      rank: of the job, here and below. The launcher is told its own number, if that is known.
    """
    if config.alone():
        return _tell(contract.ALONE)
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        segments = sorted(contract.segments_in(maps))  # MPI's, for our own are gone already
    tell_of_rank(contract.JOINED, rank, segments=segments)


def tell_exception(rank: int | None, text: str, where: str) -> None:
    """Lets the launcher know which exception ends this rank's program, and where in it.

    The rank is None before it has joined the job.
    """
    if rank is None and (config.launched_rank() is None or config.is_child_of_rank()):
        return
    tell_of_rank(contract.RAISED, rank or 0, text.encode(errors="replace"), where=where)


def tell_called(all_ranks: bool) -> None:
    """Lets the launcher know that this process has called `init`, which may fail.

    If that waits for all of the launcher's ranks, it says which one it is.
    """
    number = config.launched_rank() if all_ranks and not config.alone() else None
    _tell(contract.CALLED, rank=number)


def tell_of_rank(what: str, rank: int, load: bytes = b"", **more: object) -> None:
    """Tells the launcher what contract.py has of a rank; a process that is alone is none."""
    if not config.alone():
        launched = config.launched_rank()
        _tell(what, load, rank=rank if launched is None else launched, **more)


def _tell(what: str, load: bytes = b"", **more: object) -> None:
    if job := config.launcher_job():
        said = {"do": what, "process": os.getpid(), "time": time.time_ns(), **more}
        messages.tell(job, said, load)
