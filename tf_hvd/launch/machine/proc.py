"""What /proc says of processes. Of one that has ended, or is another user's: nothing.

Part of rank.py and agent.py, which are run as files by an isolated Python: it knows the standard
library alone.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from typing import NamedTuple

# Limits on processes that the kernel has for all, and for a container.
_LIMITS = (
    "/proc/sys/kernel/pid_max",
    "/proc/sys/kernel/threads-max",
    "/sys/fs/cgroup/pids.max",
    "/sys/fs/cgroup/pids/pids.max",
)


class Stat(NamedTuple):
    """What a process is, and whose; of one that has ended, as by default."""

    state: str = ""
    parent: int = 0
    group: int = 0
    session: int = 0
    began: int = 0
    """In ticks since the machine began."""

    @property
    def alive(self) -> bool:
        """A zombie has ended."""
        return self.state not in ("", "Z", "X")


def stat(process: int) -> Stat:
    # After the name, which may hold anything, in parentheses.
    fields = _read(process, "stat").decode(errors="replace").rpartition(")")[2].split()
    return Stat(fields[0], *map(int, (*fields[1:4], fields[19]))) if fields else Stat()


def all_stats() -> dict[int, Stat]:
    return {int(pid): stat(int(pid)) for pid in os.listdir("/proc") if pid.isdigit()}


def is_alive(process: int) -> bool:
    return stat(process).alive


def is_stopped(process: int) -> bool:
    return stat(process).state in ("T", "t")


def descendants(without: int = 0) -> list[int]:
    """The ids of all living processes below this one, but `without` and what is below that."""
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
    """Gives it a signal; False if it has ended, or is another user's."""
    with contextlib.suppress(OSError):
        os.kill(process, signum)
        return True
    return False


def name(process: int) -> str:
    """What it is called: 15 letters at most."""
    return _read(process, "comm").decode(errors="replace").rstrip("\n")


def arguments(process: int) -> list[str]:
    return _read(process, "cmdline").decode(errors="replace").split("\0")[:-1]


def environment(process: int) -> dict[str, str]:
    """The variables that it was started with."""
    entries = _read(process, "environ").decode(errors="surrogateescape").split("\0")
    return dict(entry.partition("=")[::2] for entry in entries if "=" in entry)


def ignores_hangup(process: int) -> bool:
    """Whether it ignores SIGHUP, as `nohup` makes it."""
    lines = _read(process, "status").splitlines()
    ignored = next((int(line.split()[1], 16) for line in lines if line.startswith(b"SigIgn:")), 0)
    return bool(ignored >> (signal.SIGHUP - 1) & 1)


def maps(process: int) -> list[str]:
    """What is mapped into its memory: lines that end with a file's path, if there is one."""
    return _read(process, "maps").decode(errors="replace").splitlines()


def has_tensorflow(process: int) -> bool:
    return any("/libtensorflow_" in line for line in maps(process))


def siblings(cpu: int) -> str:
    """What the hyper-threads of one core have in common, and no other core has."""
    path = f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
    with contextlib.suppress(OSError), open(path) as file:
        return file.read()
    return str(cpu)


def most() -> tuple[int, str]:
    """How many processes may run here at once, and what says so."""
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
    """How many processes the kernel has killed since this machine began, as memory ran out.

    Also that of a container, or of a scheduler's job. None where the kernel does not tell.
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
