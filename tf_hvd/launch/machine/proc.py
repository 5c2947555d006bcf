"""Information about processes from /proc, which is empty for ended and other users' processes.

This module belongs to rank.py and agent.py, which an isolated Python runs as files. It imports only
the standard library.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from typing import NamedTuple

# The kernel's limits on the number of processes, for the machine and for a container.
_LIMITS = (
    "/proc/sys/kernel/pid_max",
    "/proc/sys/kernel/threads-max",
    "/sys/fs/cgroup/pids.max",
    "/sys/fs/cgroup/pids/pids.max",
)


class Stat(NamedTuple):
    """The state, parent and start of a process; the defaults describe an ended process."""

    state: str = ""
    parent: int = 0
    group: int = 0
    session: int = 0
    began: int = 0
    """The process's start, in clock ticks since the machine started."""

    @property
    def alive(self) -> bool:
        """Whether the process runs. A zombie has ended."""
        return self.state not in ("", "Z", "X")


def stat(process: int) -> Stat:
    # The fields follow the name in parentheses, which may contain any characters.
    fields = _read(process, "stat").decode(errors="replace").rpartition(")")[2].split()
    return Stat(fields[0], *map(int, (*fields[1:4], fields[19]))) if fields else Stat()


def all_stats() -> dict[int, Stat]:
    return {int(pid): stat(int(pid)) for pid in os.listdir("/proc") if pid.isdigit()}


def is_alive(process: int) -> bool:
    return stat(process).alive


def is_stopped(process: int) -> bool:
    return stat(process).state in ("T", "t")


def descendants(without: int = 0) -> list[int]:
    """Return the ids of this process's living descendants.

    The process `without` and its descendants are not included.
    """
    there, below, added = all_stats(), set[int](), {os.getpid()}
    while added:
        added = {pid for pid, its in there.items() if its.parent in added} - {without, *below}
        below |= added
    return sorted(pid for pid in below if there[pid].alive)


def ancestors(process: int) -> set[int]:
    above = set()
    while process := stat(process).parent:
        above.add(process)
    return above


def send(process: int, signum: int) -> bool:
    """Send a signal to a process; return False if it has ended or is another user's."""
    with contextlib.suppress(OSError):
        os.kill(process, signum)
        return True
    return False


def name(process: int) -> str:
    """Return the name of a process, which has at most 15 characters."""
    return _read(process, "comm").decode(errors="replace").rstrip("\n")


def arguments(process: int) -> list[str]:
    return _read(process, "cmdline").decode(errors="replace").split("\0")[:-1]


def environment(process: int) -> dict[str, str]:
    """Return the environment variables that a process was started with."""
    entries = _read(process, "environ").decode(errors="surrogateescape").split("\0")
    return dict(entry.partition("=")[::2] for entry in entries if "=" in entry)


def ignores_hangup(process: int) -> bool:
    """Return whether a process ignores SIGHUP, as with `nohup`."""
    lines = _read(process, "status").splitlines()
    ignored = next((int(line.split()[1], 16) for line in lines if line.startswith(b"SigIgn:")), 0)
    return bool(ignored >> (signal.SIGHUP - 1) & 1)


def maps(process: int) -> list[str]:
    """Return the lines of a process's memory map. Lines of mapped files end with the path."""
    return _read(process, "maps").decode(errors="replace").splitlines()


def has_tensorflow(process: int) -> bool:
    return any("/libtensorflow_" in line for line in maps(process))


def siblings(cpu: int) -> str:
    """Return an identifier of a CPU's physical core, which is the same for its hyper-threads."""
    path = f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
    with contextlib.suppress(OSError), open(path) as file:
        return file.read()
    return str(cpu)


def most() -> tuple[int, str]:
    """Return the maximum number of processes on this machine, and the name of that limit."""
    limits = [(sys.maxsize, "")]
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY and os.geteuid() != 0:
        limits.append((soft, "ulimit -u"))
    for path in _LIMITS:
        with contextlib.suppress(OSError, ValueError), open(path) as file:
            limits.append((int(file.read()), path))
    return min(limits)


def most_files() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def killed_for_memory() -> int | None:
    """Return the number of processes that the OOM killer has killed since this machine started.

    The number includes kills due to the memory limit of a container or of a scheduler's job. The
    result is None if the number is unknown.
    """
    with contextlib.suppress(OSError, ValueError), open("/proc/vmstat") as lines:
        for line in lines:
            counted, _, number = line.partition(" ")
            if counted == "oom_kill":
                return int(number)
    return None


def _read(process: int, file: str) -> bytes:
    try:
        with open(f"/proc/{process}/{file}", "rb") as opened:
            return opened.read()
    except OSError:
        return b""
