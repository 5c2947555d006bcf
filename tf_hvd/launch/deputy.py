"""Finds the ranks of a job on one machine, and gives them and their keepers signals.

`tf_hvd run` uses this module for its own machine, and starts it on the others (grace.py): run as a
file, by an isolated Python, so it knows the standard library alone. A keeper is the process that
waits for a rank's program (keeper.py).
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING or __package__:
    from tf_hvd.launch import keeper
else:  # as a file
    sys.path.append(os.path.dirname(__file__))
    import keeper

RANKS = "tf_hvd ranks:"  # what an answer begins with: a login may print whatever it likes
TO_KEEPERS, TO_PROGRAMS, LOOK = "keepers", "programs", "look"
_GONE = (0, 0)
# In seconds: until keepers that have nothing to wait for have ended, and between two looks.
_PATIENCE, _PAUSE = 3.0, 0.02


class Deputy:
    """The ranks of one job that run on this machine by now. One thread at a time.

    Args:
        folder: the job's, by which its keepers are known; it need not exist here.
    """

    def __init__(self, folder: str) -> None:
        kin = _all_kin()
        self._keepers = {pid: number for pid in kin if (number := _kept(pid, folder)) >= 0}
        self._programs = {pid: above for pid, (above, _) in kin.items() if above in self._keepers}

    def ranks(self) -> list[int]:
        """Those whose program has not ended."""
        return sorted(self._keepers[self._programs[pid]] for pid in self._alive())

    def to_keepers(self, signum: int) -> None:
        """Sends a signal to all keepers."""
        _send(signum, (pid for pid in self._keepers if _name(pid) == keeper.NAME))

    def to_programs(self, signum: int) -> None:
        """Sends a signal to the programs that have not ended, and to what runs below them.

        As a terminal does: a shell hands none on to the Python that it waits for. Only within a
        program's process group, and not to what it has started to outlive it, by `nohup`.
        """
        kin = _all_kin()
        # In this order: `kin` has all that are alive.
        alive = set(map(keeper.program_of, self._alive()))
        _send(signum, (pid for pid in kin if _is_with(pid, alive, kin)))

    def wait_for_keepers(self) -> None:
        """Returns when those whose program has ended have ended, too, which takes no time.

        Then nothing of theirs is left, and MPI's launcher may be killed, which kills them.
        """
        until = time.monotonic() + _PATIENCE
        busy = {self._programs[pid] for pid in self._alive()}
        while any(_kin(pid) != _GONE for pid in self._keepers if pid not in busy):
            if time.monotonic() > until:
                return
            time.sleep(_PAUSE)

    def _alive(self) -> set[int]:
        """The programs that have not ended."""
        return {pid for pid, above in self._programs.items() if _kin(pid)[0] == above}


def _is_with(process: int, programs: set[int], kin: Mapping[int, tuple[int, int]]) -> bool:
    """Whether a process is one of those programs, or below one of them and to end with it."""
    program = process
    while program and program not in programs:
        program = kin.get(program, _GONE)[0]
    if program in (0, process):
        return program == process
    stays = ignores_hangup(process) and not ignores_hangup(program)
    return kin[process][1] == kin[program][1] and not stays


def _send(signum: int, to: Iterable[int]) -> None:
    for process in to:
        with contextlib.suppress(OSError):  # it has just ended
            os.kill(process, signum)


def _numbers(folder: str) -> list[int]:
    return [int(name) for name in os.listdir(folder) if name.isdigit()]


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""  # it has ended, or is another user's


def _name(process: int) -> str:
    return _read(f"/proc/{process}/comm").decode(errors="replace").rstrip("\n")


def _all_kin() -> dict[int, tuple[int, int]]:
    return {pid: _kin(pid) for pid in _numbers("/proc")}


def _kin(process: int) -> tuple[int, int]:
    """The process that has started it, and its process group; zeros if it has ended."""
    # After the name, which may hold anything, in parentheses: the state, the parent, the group.
    fields = _read(f"/proc/{process}/stat").rpartition(b")")[2].split()[:3]
    return _GONE if not fields or fields[0] in b"ZX" else (int(fields[1]), int(fields[2]))


def ignores_hangup(process: int) -> bool:
    """Whether it ignores SIGHUP, as `nohup` makes it."""
    found = re.search(rb"^SigIgn:\s*([0-9a-f]+)$", _read(f"/proc/{process}/status"), re.MULTILINE)
    return bool(found and int(found[1], 16) >> (signal.SIGHUP - 1) & 1)


def _kept(process: int, folder: str) -> int:
    """The number of the rank that a process is the keeper of; -1 if it is none of this job."""
    if _name(process) != keeper.NAME:
        return -1
    words = _read(f"/proc/{process}/cmdline").decode(errors="replace").split("\0")
    if folder not in words[:-1]:
        return -1
    names = words[words.index(folder) + 1].split(",")  # rank.py's arguments
    environ = dict(
        each.partition("=")[::2]
        for each in _read(f"/proc/{process}/environ").decode(errors="replace").split("\0")
    )
    return next((int(environ[name]) for name in names if environ.get(name, "").isdigit()), 0)


def main(arguments: list[str]) -> None:
    """Does what standard input says, a line at a time: `keepers 34`, `programs 2`, `look`.

    Args:
        arguments: the job's folder, and the signal that the keepers get at the input's end.
    """
    folder, last = arguments
    deputy = Deputy(folder)
    with contextlib.suppress(OSError):  # nobody reads what is printed any more
        for line in sys.stdin:
            what, _, signum = line.strip().partition(" ")
            if what == TO_KEEPERS:
                deputy.to_keepers(int(signum))
            elif what == TO_PROGRAMS:
                deputy.to_programs(int(signum))
            else:
                print(RANKS, *deputy.ranks(), flush=True)
    deputy.to_keepers(int(last))
    deputy.wait_for_keepers()


if __name__ == "__main__":
    main(sys.argv[1:])
