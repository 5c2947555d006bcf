"""/dev/shm on this machine: the space that a job needs, and the message if it is too small."""

from __future__ import annotations

import os

_FOLDER = "/dev/shm"
# Bytes per rank on one machine. MPICH 5 with UCX needs 5.3 MiB, Open MPI 5 0.3 MiB, tf_hvd 4.2 MiB.
_NEEDED = {"mpich": 10 << 20, "openmpi": 5 << 20}
# Each rank of Open MPI creates a file of this size. The file must fit, although most of it never
# occupies memory. The smaller size is sufficient.
_SEGMENT, _SMALL_SEGMENT = 16 << 20, 2 << 20


def free() -> int | None:
    """Return the free bytes in /dev/shm, or None if unknown."""
    try:
        status = os.statvfs(_FOLDER)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize


def small_segment(ranks: int) -> str:
    """Return a smaller size for Open MPI's segments if /dev/shm has little space, else "".

    Args:
        ranks: number of ranks on this machine.
    """
    room = free()
    enough = room is None or room >= ranks * (_SEGMENT + _NEEDED["openmpi"])
    return "" if enough else str(_SMALL_SEGMENT)


def little_text(family: str, there: int | None, ranks: int) -> str:
    """Return the message about /dev/shm for a job that failed before any rank joined it.

    The message is empty if /dev/shm had enough space.

    Args:
        family: the MPI family.
        there: free bytes in /dev/shm when the job started; None if unknown.
        ranks: number of ranks on this machine.
    """
    needed = ranks * _NEEDED.get(family, 0)
    if there is None or there >= needed:
        return ""
    full = "; MPICH crashes with a bus error if it is full" if family == "mpich" else ""
    return (
        f"tf_hvd run: {_FOLDER} had {there >> 20} MiB free when the job started, but {ranks} "
        f"ranks need {needed >> 20} MiB{full}. Remove old files from /dev/shm, or enlarge "
        "/dev/shm (docker run --shm-size=1g)"
    )
