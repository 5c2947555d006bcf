"""What the launcher and the ranks on its machine know of each other: a private folder.

In it lie a socket, at which each rank reports when it starts and rank 0 gets the standard input,
and a file for each rank that has joined the job (tf_hvd/core/_launcher.py). Both are for this
machine: on others the folder does not exist, or tells of another machine, and the ranks there say
nothing.
"""

from __future__ import annotations

import array
import contextlib
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType

from tf_hvd.launch import keeper, processes, rank
from tf_hvd.launch.environment import MPI_RANK_VARIABLES
from tf_hvd.launch.errors import UsageError
from tf_hvd.launch.leftovers import Traces
from tf_hvd.launch.terminal import Terminal

CALLED = "called."
ALONE = "alone."
LEFT = "left."
EXITS = "exits."
EXCEPTION = "exception."
ASKED = "asked."
INNER, NESTED = "inner.", "nested."
_FOREGROUND_MILLISECONDS = 500
_ROOM = 1 << 18  # bytes of the temporary folder: MPI's and our own files take less
_RAISED = 1  # the exit code of a program that an exception ends


class Session:
    """The folder of one job. A context: the folder is gone at its end.

    Args:
        gives_input: whether rank 0 runs on this machine and gets its standard input.
        outer: the folder of the job that a rank of which started this one; empty if none did.
        terminal: reads the standard errors of this machine's ranks; None: they keep what they have.
    """

    def __init__(
        self, gives_input: bool = True, outer: str = "", terminal: Terminal | None = None
    ) -> None:
        try:
            self.folder = Path(tempfile.mkdtemp(prefix="tf_hvd-"))
        except OSError as error:
            raise UsageError(
                f"no folder can be made in {error.filename or 'the temporary folder'}: "
                f"{error.strerror}; set TMPDIR"
            ) from error
        self._check_room()
        (self.folder / rank.MACHINE).write_text(rank.machine())
        self.ranks: dict[int, int] = {}
        """The process id of each rank that has reported, by rank."""
        self.sessions: set[int] = set()
        """The sessions that the launcher has put those into."""
        self.recordings: dict[int, int] = {}
        """The file in which each such rank's calls are recorded, by rank."""
        self.killed_before = processes.killed_for_memory()
        """How many processes the kernel had killed for memory when the job began; None: unknown."""
        self._gives_input = gives_input
        self._outer = outer
        self._terminal = terminal
        self._input: int | None = None
        self._listener = socket.socket(socket.AF_UNIX)
        where = os.open(self.folder, os.O_PATH | os.O_DIRECTORY)
        try:
            self._listener.bind(f"/proc/self/fd/{where}/{rank.SOCKET}")
        finally:
            os.close(where)
        self._listener.listen(socket.SOMAXCONN)
        self._traces = Traces(self.folder)

    def _check_room(self) -> None:
        """Here MPI keeps files as well, and says but little of a folder that is full."""
        room = self.folder / "room"
        try:
            room.write_bytes(bytes(_ROOM))
            room.unlink()
        except OSError as error:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise UsageError(
                f"the temporary folder {self.folder.parent} has no room for the {_ROOM >> 10} KiB "
                f"that a job needs there: {error.strerror}; remove old files, or set TMPDIR to a "
                "folder with more room"
            ) from error

    def __enter__(self) -> Session:
        self._tell_outer(NESTED)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.close()
        for file in self.recordings.values():
            os.close(file)
        if self.joined():
            self._tell_outer(INNER)
        self._traces.clear()

    def _tell_outer(self, what: str) -> None:
        """Tells the job that this one was started in, if there is one."""
        if self._outer:
            with contextlib.suppress(OSError):  # it was started on another machine, or is over
                Path(self._outer, f"{what}{os.getpid()}").touch()

    def serve(self) -> None:
        """Begins to answer the ranks. Starts threads: call it when nothing will be forked."""
        self._input = _standard_input() if self._gives_input else None
        threading.Thread(target=self._answer, name="ranks", daemon=True).start()

    def joined(self) -> bool:
        """Whether a rank of this machine has joined the job, or was told to stay out of it."""
        return any(any(self.folder.glob(f"{each}*")) for each in (rank.JOINED, ALONE))

    def called(self) -> bool:
        """Whether a process of this machine has called `init`, be it in vain."""
        return any(self.folder.glob(f"{CALLED}*"))

    def has_called(self, number: int) -> bool:
        """Whether a rank of this machine has."""
        return self.ranks.get(number) in self._told(CALLED)

    def started_jobs(self) -> bool:
        """Whether a rank of this machine started a job of its own, which ranks joined."""
        return any(self.folder.glob(f"{INNER}*"))

    def starts_jobs(self) -> bool:
        """Whether a rank of this machine has started a job of its own, whatever becomes of it."""
        return any(self.folder.glob(f"{NESTED}*"))

    def codes(self) -> dict[int, int]:
        """The exit code, or minus the signal, of each rank of this machine that has ended badly.

        Of those that an exception has ended it is that of an exception: at the end of another, who
        was told of it, the launcher may end them before they have ended, or kill them. None of
        Slurm's ranks, which start without our help.
        """
        codes = {
            number: int((self.folder / f"{keeper.ENDED}{number}").read_text())
            for number in self._told(keeper.ENDED)
        }
        for number in self._told(EXCEPTION):
            if codes.get(number, -signal.SIGTERM) in (-signal.SIGTERM, -signal.SIGKILL):
                codes[number] = _RAISED
        return codes

    def began_to_end(self, number: int) -> int:
        """When a rank's program raised, or began to leave the job or, at the latest, has ended.

        Others may be told of it, and end, before it has. In nanoseconds.
        """
        told = [self.folder / f"{what}{number}" for what in (EXCEPTION, EXITS, keeper.ENDED)]
        return min(file.stat().st_mtime_ns for file in told if file.exists())

    def exception(self, number: int) -> tuple[str, str]:
        """Where a rank's program raised the exception that ended it, and which; empty if none did.

        As `_launcher.tell_exception` has written them.
        """
        try:
            text = (self.folder / f"{EXCEPTION}{number}").read_text(errors="replace")
        except OSError:
            return "", ""
        where, _, exception = text.partition("\n")
        return where, exception

    def raised(self) -> dict[int, int]:
        """The ranks of this machine whose program an exception ends, and their processes."""
        told = self._told(EXCEPTION)
        return {number: pid for number, pid in list(self.ranks.items()) if number in told}

    def asked(self) -> list[int]:
        """The ranks of this machine that ended in order, since one of the job was asked to end."""
        return sorted(self._told(ASKED))

    def ended_inside(self) -> list[int]:
        """The ranks of this machine that ended with exit code 0 but never left the job."""
        elsewhere = (self._told(each) for each in (LEFT, EXITS, keeper.RUNNING, keeper.ENDED))
        return sorted(self._told(rank.JOINED).difference(*elsewhere))

    def ended_before(self) -> list[int]:
        """The ranks of this machine that ended with exit code 0 and had not called `init`.

        None if no other rank has called it: then nobody waited for them.
        """
        called = self._told(CALLED)  # processes
        elsewhere = self._told(rank.JOINED) | self._told(keeper.RUNNING) | self._told(keeper.ENDED)
        return sorted(
            number
            for number, process in self.ranks.items()
            if called and process not in called and number not in elsewhere
        )

    def told_to_be_alone(self) -> list[int]:
        """The ranks of this machine that `TF_HVD_ALONE=1` kept out, where others did join or wait.

        None if all were: then nobody waited for them.
        """
        alone, called = self._told(ALONE), self._told(CALLED)  # processes
        if not called - alone:
            return []
        return sorted(number for number, process in self.ranks.items() if process in alone)

    def cut_short(self) -> list[int]:
        """The ranks that have not ended well, or not by themselves; of this machine alone."""
        return sorted(self._told(keeper.RUNNING))

    def _told(self, prefix: str) -> set[int]:
        """The ranks of this machine that have such a file."""
        return {int(file.suffix[1:]) for file in self.folder.glob(f"{prefix}*")}

    def failed(self) -> list[int]:
        """The ranks of this machine at whose end the whole job is to end.

        Those that a signal ended, and those that had joined the job and ended with an error,
        unless they had left it by `shutdown()`. For a moment also one that has just ended well.
        """
        alive = processes.is_alive
        ended = {number for number, process in list(self.ranks.items()) if not alive(process)}
        return [number for number in self.cut_short() if number in ended and self._broke(number)]

    def _broke(self, number: int) -> bool:
        """Whether a rank did not end well: not by itself, or in the job and with an error."""
        try:
            code = int((self.folder / f"{keeper.ENDED}{number}").read_text())
        except (OSError, ValueError):
            return True  # killed, and with it the process that was to say so
        return code < 0 or number in self._told(rank.JOINED) - self._told(LEFT)

    def rank_of(self, process: int) -> int | None:
        """The rank of this job that a process is of; none also of one that copies its output."""
        environ = processes.environment(process)
        if environ.get(rank.FOLDER_VARIABLE) != str(self.folder) or _is_starter(process):
            return None
        numbers = [environ.get(name, "") for name in MPI_RANK_VARIABLES]
        return next((int(number) for number in numbers if number.isdigit()), None)

    def is_copier(self, process: int) -> bool:
        """Whether a process copies the output of a rank of this job, until that is closed."""
        return _is_starter(process) and str(self.folder) in processes.arguments(process)

    def all_ended(self, here: int) -> bool:
        """Whether all of this machine's `here` ranks have started, and have ended."""
        pids = list(self.ranks.values())
        return len(pids) >= here and not any(map(processes.is_alive, pids))

    def _answer(self) -> None:
        with contextlib.suppress(OSError):  # the listener is closed at the end
            while True:
                link, _ = self._listener.accept()
                with link, contextlib.suppress(OSError, ValueError):
                    link.settimeout(10.0)
                    number, pid, begins = self._report_of(link)
                    self.sessions |= {processes.session(pid) or 0}
                    if begins:
                        self._welcome(link, number)
                    self.ranks[number] = pid

    def _report_of(self, link: socket.socket) -> tuple[int, int, bool]:
        """A rank's number and process, and whether it begins, or has another process from now on.

        Keeps the file in which its calls are recorded.
        """
        text, files, _, _ = socket.recv_fds(link, 64, 1)
        try:
            number, pid = map(int, text.removeprefix(rank.MOVED).split())
        except ValueError:
            for file in files:
                os.close(file)
            raise
        for file in files:
            if number in self.recordings:
                os.close(self.recordings[number])
            self.recordings[number] = file
        return number, pid, not text.startswith(rank.MOVED)

    def _welcome(self, link: socket.socket, number: int) -> None:
        """Hands a rank its standard input and error, as far as they come from here."""
        handed = {}
        if number == 0 and self._input is not None:
            handed[rank.INPUT], self._input = self._input, None
        if self._terminal is not None:
            handed[rank.ERRORS] = self._terminal.errors(number)
        sent = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", handed.values()))]
        link.sendmsg(["".join(handed).encode() or rank.NOTHING.encode()], sent if handed else [])
        for descriptor in handed.values():
            os.close(descriptor)


def _is_starter(process: int) -> bool:
    return rank.__file__ in processes.arguments(process)


def _standard_input() -> int | None:
    """What rank 0 reads: this process's own input, so that nothing but the rank consumes it."""
    if sys.stdin is None:
        return None
    if not os.isatty(0):
        return os.dup(0)
    # A rank is in the terminal's background, where reading would stop it: we read for it.
    read_end, write_end = os.pipe()
    threading.Thread(target=_copy_terminal, args=(write_end,), name="terminal", daemon=True).start()
    return read_end


def _copy_terminal(to: int) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTIN})
    typed = select.poll()
    typed.register(0, select.POLLIN)
    foreground = select.poll()
    with contextlib.suppress(OSError):
        while True:
            if not typed.poll(_FOREGROUND_MILLISECONDS):
                continue
            if os.tcgetpgrp(0) != os.getpgrp():
                foreground.poll(_FOREGROUND_MILLISECONDS)
                continue
            text = os.read(0, 4096)
            if not text or not rank.write_all(to, text):
                break
    os.close(to)
