"""What /proc says of processes. Of one that has ended, or is another user's: nothing.

Part of rank.py and agent.py, which are run as files by an isolated Python: it knows the standard
library alone.
"""

from __future__ import annotations

import os
import signal

GONE = (0, 0)


def name(process: int) -> str:
    """What it is called: 15 letters at most."""
    return _read(process, "comm").decode(errors="replace").rstrip("\n")


def arguments(process: int) -> list[str]:
    """Its command line."""
    return _read(process, "cmdline").decode(errors="replace").split("\0")[:-1]


def environment(process: int) -> dict[str, str]:
    """The variables that it was started with."""
    entries = _read(process, "environ").decode(errors="surrogateescape").split("\0")
    return dict(entry.partition("=")[::2] for entry in entries if "=" in entry)


def kin(process: int) -> tuple[int, int]:
    """The process that has started it, and its process group; `GONE` also of a zombie."""
    # After the name, which may hold anything, in parentheses: the state, the parent, the group.
    fields = _read(process, "stat").rpartition(b")")[2].split()[:3]
    return GONE if not fields or fields[0] in b"ZX" else (int(fields[1]), int(fields[2]))


def all_kin() -> dict[int, tuple[int, int]]:
    """`kin` of all processes."""
    return {int(pid): kin(int(pid)) for pid in os.listdir("/proc") if pid.isdigit()}


def ignores_hangup(process: int) -> bool:
    """Whether it ignores SIGHUP, as `nohup` makes it."""
    lines = _read(process, "status").splitlines()
    ignored = next((int(line.split()[1], 16) for line in lines if line.startswith(b"SigIgn:")), 0)
    return bool(ignored >> (signal.SIGHUP - 1) & 1)


def maps(process: int) -> list[str]:
    """What is mapped into its memory: lines that end with a file's path, if there is one."""
    return _read(process, "maps").decode(errors="replace").splitlines()


def _read(process: int, file: str) -> bytes:
    try:
        with open(f"/proc/{process}/{file}", "rb") as opened:
            return opened.read()
    except OSError:
        return b""
