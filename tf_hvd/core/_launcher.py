"""Reports from a rank to the `tf_hvd run` that started it; contract.py defines them."""

import os
import time

from tf_hvd.core import config, contract, messages


def tell_joined(rank: int) -> None:
    """Report to the launcher that this rank has joined the job; `init` calls it.

    The report also names the rank's shared memory, which the launcher removes if the rank is
    killed. A process with `TF_HVD_ALONE=1` joins no job, and reports that instead.

    Args:
      rank: this rank's number in the job. If the number that the launcher assigned is known, the
        report contains that number instead.
    """
    if config.alone():
        return _tell(contract.ALONE)
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        segments = sorted(contract.segments_in(maps))  # only MPI's: tf_hvd's are already unlinked
    tell_of_rank(contract.JOINED, rank, segments=segments)


def tell_exception(rank: int | None, text: str, where: str) -> None:
    """Report to the launcher the exception that ends this rank's program, and where it arose.

    `rank` is None before the process has joined the job.
    """
    if rank is None and (config.launched_rank() is None or config.is_child_of_rank()):
        return
    tell_of_rank(contract.RAISED, rank or 0, text.encode(errors="replace"), where=where)


def tell_called(all_ranks: bool) -> None:
    """Report to the launcher that this process has called `init`, which may still fail.

    If `init` waits for all of the launcher's ranks, the report includes this rank's number.
    """
    number = config.launched_rank() if all_ranks and not config.alone() else None
    _tell(contract.CALLED, rank=number)


def tell_of_rank(what: str, rank: int, load: bytes = b"", **more: object) -> None:
    """Send the launcher a report that contract.py defines, unless TF_HVD_ALONE=1."""
    if not config.alone():
        launched = config.launched_rank()
        _tell(what, load, rank=rank if launched is None else launched, **more)


def _tell(what: str, load: bytes = b"", **more: object) -> None:
    if job := config.launcher_job():
        said = {"do": what, "process": os.getpid(), "time": time.time_ns(), **more}
        messages.tell(job, said, load)
