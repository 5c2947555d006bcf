"""/dev/shm on this machine: what a job takes of it, and what is said where that is not there."""

from __future__ import annotations

import os

_FOLDER = "/dev/shm"
# Bytes that a rank takes on one machine: MPICH 5 with UCX 5.3 MiB, Open MPI 5 0.3 MiB, tf_hvd 4.2.
_NEEDED = {"mpich": 10 << 20, "openmpi": 5 << 20}
# Each rank of Open MPI makes a file of this size, for which there must be room, though most of it
# never gets any memory; and what will do as well.
_SEGMENT, _SMALL_SEGMENT = 16 << 20, 2 << 20


def free() -> int | None:
    """The bytes that are free there; None if it cannot be told."""
    try:
        status = os.statvfs(_FOLDER)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize


def small_segment(ranks: int) -> str:
    """The size that will do if there is little room for so many ranks of Open MPI; else empty."""
    room = free()
    enough = room is None or room >= ranks * (_SEGMENT + _NEEDED["openmpi"])
    return "" if enough else str(_SMALL_SEGMENT)


def little_text(family: str, there: int | None, ranks: int) -> str:
    """What to say when a job has failed before any rank joined it; empty if there was enough.

    `there` are the bytes that were free when the job started; None if that is not known.
    """
    needed = ranks * _NEEDED.get(family, 0)
    if there is None or there >= needed:
        return ""
    full = "; MPICH dies of a bus error where it is full" if family == "mpich" else ""
    return (
        f"tf_hvd run: {_FOLDER} had {there >> 20} MiB free when the job started, and {ranks} "
        f"ranks need {needed >> 20} MiB{full}. Remove old files there, or give it more "
        "(docker run --shm-size=1g)"
    )
