"""Finds the ranks of a job on one machine, and gives them and their keepers signals.

`tf_hvd run` uses this module for its own machine, and starts it by ssh on the others: run as a
file, by an isolated Python, so it knows the standard library alone. A keeper is the process that
waits for a rank's program (rank.py).
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable

KEEPER = b"tf_hvd_run_rank"  # as /proc has it
RANKS = "tf_hvd ranks:"  # what an answer begins with: a login may print whatever it likes
TO_KEEPERS, TO_PROGRAMS, LOOK = "keepers", "programs", "look"


class Deputy:
    """The ranks of one job that run on this machine by now. One thread at a time.

    Args:
        folder: the job's, by which its keepers are known; it need not exist here.
    """

    def __init__(self, folder: str) -> None:
        parents = {pid: _parent(pid) for pid in _numbers("/proc")}
        self._keepers = {pid: number for pid in parents if (number := _kept(pid, folder)) >= 0}
        self._programs = {pid: keeper for pid, keeper in parents.items() if keeper in self._keepers}

    def ranks(self) -> list[int]:
        """Those whose program has not ended."""
        alive = (keeper for pid, keeper in self._programs.items() if _parent(pid) == keeper)
        return sorted(self._keepers[keeper] for keeper in alive)

    def to_keepers(self, signum: int) -> None:
        """Sends a signal to all keepers."""
        _send(signum, (pid for pid in self._keepers if _name(pid) == KEEPER))

    def to_programs(self, signum: int) -> None:
        """Sends a signal to the programs that have not ended."""
        _send(signum, (pid for pid, keeper in self._programs.items() if _parent(pid) == keeper))


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


def _name(process: int) -> bytes:
    return _read(f"/proc/{process}/comm").rstrip(b"\n")


def _parent(process: int) -> int:
    """The process that has started it; 0 if it has ended, be it as a zombie."""
    # After the name, which may hold anything, in parentheses: the state, and the parent.
    state, parent = (_read(f"/proc/{process}/stat").rpartition(b")")[2].split() or [b"Z", b"0"])[:2]
    return 0 if state in b"ZX" else int(parent)


def _kept(process: int, folder: str) -> int:
    """The number of the rank that a process is the keeper of; -1 if it is none of this job."""
    if _name(process) != KEEPER:
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


if __name__ == "__main__":
    main(sys.argv[1:])
