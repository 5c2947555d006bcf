"""What runs on this machine: asks psutil, for who must not fail when a process has just ended."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from pathlib import Path

import psutil

from tf_hvd.launch.machine import proc

# Limits on processes that the kernel has for all, and for a container.
_LIMITS = (
    "/proc/sys/kernel/pid_max",
    "/proc/sys/kernel/threads-max",
    "/sys/fs/cgroup/pids.max",
    "/sys/fs/cgroup/pids/pids.max",
)


def most() -> tuple[int, str]:
    """How many processes may run here at once, and what says so."""
    limits = [(sys.maxsize, "")]
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY and os.geteuid() != 0:
        limits.append((soft, "ulimit -u"))
    for file in _LIMITS:
        try:
            text = Path(file).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            limits.append((int(text), file))
    return min(limits)


def killed_for_memory() -> int | None:
    """How many processes the kernel has killed since this machine began, as memory ran out.

    Also that of a container, or of a scheduler's job. None where the kernel does not tell.
    """
    with contextlib.suppress(OSError, ValueError), open("/proc/vmstat") as lines:
        for line in lines:
            name, _, number = line.partition(" ")
            if name == "oom_kill":
                return int(number)
    return None


def is_alive(process: int) -> bool:
    """Whether there is such a process that has not ended; a zombie has."""
    try:
        return psutil.Process(process).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False


def is_stopped(process: int) -> bool:
    """Whether a signal or a debugger has stopped it."""
    try:
        status = psutil.Process(process).status()
    except psutil.Error:
        return False
    return status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


def descendants(without: int | None = None) -> list[int]:
    """The ids of all living processes below this one; zombies do not count.

    Args:
        without: a process that is left out, with all that is below it.
    """
    below = _below(os.getpid())
    if without is not None:
        below = below - _below(without) - {without}
    return sorted(filter(is_alive, below))


def _below(process: int) -> set[int]:
    try:
        return {child.pid for child in psutil.Process(process).children(recursive=True)}
    except psutil.Error:
        return set()


def ancestors(process: int) -> set[int]:
    """The ids of the processes above it."""
    try:
        return {parent.pid for parent in psutil.Process(process).parents()}
    except psutil.Error:
        return set()


def name(process: int) -> str:
    """What it is called; empty if it has ended."""
    try:
        return psutil.Process(process).name()
    except psutil.Error:
        return ""


def session(process: int) -> int | None:
    """The id of its session, which `setsid` makes; None if it has ended."""
    try:
        return os.getsid(process)
    except OSError:
        return None


def has_tensorflow(process: int) -> bool:
    """Whether TensorFlow's library is loaded in it."""
    return any("/libtensorflow_" in line for line in proc.maps(process))
