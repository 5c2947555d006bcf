"""/dev/shm on this machine: what a job takes of it, and what is said where that is not there."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

_FOLDER = "/dev/shm"
# Bytes that a rank takes on one machine: MPICH 5 with UCX 5.3 MiB, Open MPI 5 0.3 MiB, tf_hvd 4.2.
_NEEDED = {"mpich": 10 << 20, "openmpi": 5 << 20}
# Each rank of Open MPI makes a file of this size, for which there must be room, though most of it
# never gets any memory; and what will do as well.
_SEGMENT, _SMALL_SEGMENT = 16 << 20, 2 << 20
_SEGMENT_SETTING = "btl_sm_segment_size"


def free() -> int | None:
    """The bytes that are free there; None if it cannot be told."""
    try:
        status = os.statvfs(_FOLDER)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize


def small_segments(
    family: str, ranks: int, words: Sequence[str], environ: Mapping[str, str]
) -> dict[str, str]:
    """What lets Open MPI do with less where there is little, unless the user has chosen.

    Else it says of ranks beside each other that they cannot reach each other.

    Args:
        family: the MPI's.
        ranks: how many run on this machine.
        words: the user's arguments for the launcher.
        environ: the ranks' environment.
    """
    there, name = free(), f"OMPI_MCA_{_SEGMENT_SETTING}"
    chosen = name in environ or _SEGMENT_SETTING in words
    enough = there is None or there >= ranks * (_SEGMENT + _NEEDED["openmpi"])
    if family != "openmpi" or chosen or enough:
        return {}
    return {name: str(_SMALL_SEGMENT)}


def little_text(family: str, there: int | None, ranks: int) -> str:
    """What to say when a job has failed before any rank joined it; empty if there was enough.

    Args:
        family: the MPI's; empty for none.
        there: the bytes that were free when the job started; None if that is not known.
        ranks: how many run on this machine.
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
