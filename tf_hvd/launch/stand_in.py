"""Lets a rank of an elastic job begin in its machine's standby, where TensorFlow is loaded already.

The standby (elastic/standby.py) forks the program; this process, which the MPI's launcher has
started for it, hands over all that a program inherits, and then stands in for it: it hands on
signals and ends as the program does. Part of rank.py, which loads this file where there is an
elastic job: it knows the standard library alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from tf_hvd.launch import keeper
else:
    import keeper

ADDRESS = "\0tf_hvd_standby/"  # and the job's token: as in elastic/standby.py
CREDENTIALS = struct.Struct("3i")
STATUS = struct.Struct("<i")
"""How the program has ended: its exit code, or minus the signal."""
_PATIENCE = 10.0  # seconds for the standby to answer
_MOST_FILES = 200  # the kernel lets 253 travel at once
_HANDED_ON = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, signal.SIGALRM, signal.SIGVTALRM),
    *(signal.SIGPROF, signal.SIGPWR, signal.SIGURG, signal.SIGXCPU, signal.SIGWINCH),
)
_LIMITS = (
    *(resource.RLIMIT_AS, resource.RLIMIT_CORE, resource.RLIMIT_CPU, resource.RLIMIT_DATA),
    *(resource.RLIMIT_FSIZE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_NOFILE),
    *(resource.RLIMIT_NPROC, resource.RLIMIT_STACK),
)


def run(command: list[str], token: str, begins: Callable[[int], None]) -> int | None:
    """Runs a command in the standby of this machine, to its end; returns how it has ended.

    None if there is no standby, or it cannot take this command: nothing has happened then.

    Args:
        command: a Python program.
        token: of the elastic job.
        begins: called with the program's process, before it begins.
    """
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(_PATIENCE)
        try:
            link.connect(ADDRESS + token)
            told = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
            if CREDENTIALS.unpack(told)[1] != os.geteuid():
                return None
            program = _Program(link, command)
        except (OSError, ValueError, KeyError) as error:
            _say(str(error))
            return None
        begins(program.process)
        for signum in _HANDED_ON:
            signal.signal(signum, program.hand_on)
        if signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
            signal.signal(signal.SIGTSTP, program.stop)
        if not program.begin():
            return -signal.SIGKILL
        link.settimeout(None)
        keeper.close_all({str(link.fileno())})
        try:
            ended = link.recv(STATUS.size, socket.MSG_WAITALL)
        except OSError:
            ended = b""
        if len(ended) < STATUS.size:  # the standby is gone, and the program with it
            program.hand_on(signal.SIGKILL)
            return -signal.SIGKILL
        return int(STATUS.unpack(ended)[0])


def _say(why: str) -> None:
    if os.environ.get("TF_HVD_LOG_LEVEL", "").strip().lower() in ("trace", "debug"):
        with contextlib.suppress(OSError):
            sys.stderr.write(f"tf_hvd run: this rank starts without the standby: {why}\n")


class _Program:
    """The program, which has been forked and waits.

    Raises:
        OSError, ValueError, KeyError: there is none, with the reason.
    """

    def __init__(self, link: socket.socket, command: list[str]) -> None:
        self._files = _inherited()
        ours, its = socket.socketpair()
        ours.settimeout(_PATIENCE)
        with its:
            about = {"command": command, "files": self._files, **_inheritance()}
            request = json.dumps(about).encode() + b"\n"
            socket.send_fds(link, [request[:1]], [its.fileno()])
            link.sendall(request[1:])
        self._to = ours
        with ours.makefile("rb") as answers:
            answer: dict[str, Any] = json.loads(answers.readline() or b"{}")
        if "refused" in answer:
            raise ValueError(answer["refused"])
        self.process = int(answer["process"])

    def begin(self) -> bool:
        """Gives it our files, with which it begins; False if it has ended."""
        try:
            targets = json.dumps(self._files).encode()
            socket.send_fds(self._to, [targets], self._files)
        except OSError:
            return False
        finally:
            self._to.close()
        return True

    def hand_on(self, signum: int, *_: object) -> None:
        """Hands a signal on to it and what it has started, as launchers do."""
        with contextlib.suppress(OSError):
            os.killpg(self.process, signum)

    def stop(self, *_: object) -> None:
        """Ctrl-Z: neither it nor this process goes on until SIGCONT, which is handed on.

        By SIGSTOP: in a session of its own, the kernel lets SIGTSTP stop nobody.
        """
        self.hand_on(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)


def _inherited() -> list[int]:
    """The files that a program started now would have.

    Raises:
        ValueError: too many.
    """
    files = []
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # what has listed them
            if not fcntl.fcntl(number, fcntl.F_GETFD) & fcntl.FD_CLOEXEC:
                files.append(number)
    if len(files) > _MOST_FILES:
        raise ValueError(f"{len(files)} files are open")
    return sorted(files)


def _inheritance() -> dict[str, Any]:
    """What else such a program would have of this process."""
    mask = os.umask(0)
    os.umask(mask)
    return {
        "environ": dict(os.environ),
        "folder": os.getcwd(),
        "umask": mask,
        "cores": sorted(os.sched_getaffinity(0)),
        "limits": {str(kind): resource.getrlimit(kind) for kind in _LIMITS},
        "ignored": [
            int(signum) for signum in _HANDED_ON if signal.getsignal(signum) is signal.SIG_IGN
        ],
    }
