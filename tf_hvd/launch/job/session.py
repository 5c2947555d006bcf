"""The connection between `tf_hvd run` and the ranks on its machine while a job runs.

The connection consists of the agent's socket and a folder for MPI's files. Over the socket, a
rank receives its standard input and error and sends its messages.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shutil
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from tf_hvd.core import contract, files, messages
from tf_hvd.launch.errors import UsageError
from tf_hvd.launch.job.environment import MPI_RANK_VARIABLES
from tf_hvd.launch.job.job_state import JobState
from tf_hvd.launch.job.leftovers import Traces
from tf_hvd.launch.job.terminal import Terminal
from tf_hvd.launch.machine import keeper, proc, rank
from tf_hvd.launch.machine.agent import Agent
from tf_hvd.launch.machine.commits import Commits
from tf_hvd.launch.machine.lines import write_all

_FOREGROUND_MILLISECONDS = 500
_ROOM = 1 << 18  # bytes in the temporary folder, more than the files of MPI and tf_hvd need


class Home(contextlib.AbstractContextManager["Home"]):
    """A context with a job's resources on this machine for all of its starts.

    The resources are the agent, the commits of an elastic job, and a process that cleans up if this
    process is killed.
    """

    def __init__(self, commits: Commits | None = None) -> None:
        self.job = f"tf_hvd-{secrets.token_hex(8)}"
        self.traces = Traces(self.job)  # forks
        self._commits = commits
        self.lost: dict[str, int] = {}
        """Output that could not be written, in the form of `Writer.lost` (lines.py)."""
        self.session: Session | None = None
        """The start that is running now; only that session sets this attribute."""
        self._agent = Agent(self.job, self._hear)
        self.serve = self._agent.serve
        self.settle = self._agent.settle

    def __exit__(self, *_: object) -> None:
        self._agent.close()
        if self._commits:
            self._commits.close()
        self.traces.clear()
        self.traces.close()

    def _hear(self, link: messages.Link, message: dict[str, Any], load: bytes) -> None:
        session = self.session  # it may become None at any time
        if self._commits and "round" in message:
            self._commits.answer(link, message, load)
        elif session is not None:
            session.hear(link, message, load)


class Session(contextlib.AbstractContextManager["Session"]):
    """A context for one start of a job, which removes the start's files and memory at the end.

    Args:
        home: the job's resources for all starts.
        gives_input: whether rank 0 runs on this machine and gets this process's standard input.
        outer: the job of the rank that started this job; empty if no rank started it.
        terminal: reads the standard error from this machine's ranks; None to leave it unchanged.
    """

    def __init__(
        self,
        home: Home,
        gives_input: bool = True,
        outer: str = "",
        terminal: Terminal | None = None,
    ) -> None:
        self.folder = new_folder()
        home.traces.note([str(self.folder.absolute())])
        # MPI keeps files there as well, and its error for a full folder says little.
        room = self.folder / "room"
        try:
            with files.writing(room) as file:
                file.write(bytes(_ROOM))
            room.unlink()
        except OSError as error:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise UsageError(
                f"the temporary folder {self.folder.parent} does not have the {_ROOM >> 10} KiB of "
                f"free space that a job needs: {error.strerror}; remove old files, or set TMPDIR "
                "to another folder"
            ) from error
        self.home = home
        self.state = JobState(self.folder.name)
        """The state of this machine's ranks."""
        self._outer = outer
        self._terminal = terminal
        # `_input` is rank 0's standard input: this process's own, so that only the rank reads it.
        # A rank runs in the background of a terminal, where reading would stop it. If the input is
        # a terminal, this process therefore copies it into the pipe `_typed`.
        self._input: int | None = None
        self._typed: int | None = None
        if gives_input and sys.stdin is not None:
            self._input, self._typed = os.pipe() if os.isatty(0) else (os.dup(0), None)
        self._over = threading.Event()
        home.session = self
        if outer:
            messages.tell(outer, {"do": contract.NESTED})

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.home.session = None
        if self._input is not None:
            os.close(self._input)
        if self._outer and self.state.joined():
            messages.tell(self._outer, {"do": contract.INNER})
        self.home.traces.clear()
        self.state.close()

    def serve(self) -> None:
        """Start threads that answer the ranks. The threads still run when a later start forks."""
        if self._typed is not None:
            arguments = (self._typed, self._over)
            threading.Thread(target=_copy_terminal, args=arguments, daemon=True).start()
        self.home.serve()

    def hear(self, link: messages.Link, message: dict[str, Any], load: bytes) -> None:
        if message["do"] == contract.BEGINS:
            number = int(message["rank"])
            if message["process"] != messages.peer(link.socket)[0]:
                # The rank is in a container on this machine, where process ids differ.
                return link.send({"do": contract.BEGINS, "hands": None})
            if link.files:
                self.state.take_recording(number, link.files.pop(0))
            return self._welcome(link, number)
        if message["do"] == contract.GONE:
            return self.state.hear_end(messages.peer(link.socket)[0])
        if message["do"] == contract.LOST:
            self.home.lost |= {str(name): int(why) for name, why in message["files"].items()}
            return None
        self.state.hear(message, load)
        if message["do"] == contract.JOINED:
            self.home.traces.note(self.state.segments())

    def rank_of(self, process: int) -> int | None:
        """Return the rank in this job that a process belongs to, or None.

        Keepers belong to no rank.
        """
        environ = proc.environment(process)
        if environ.get(contract.JOB) != self.home.job or rank.__file__ in proc.arguments(process):
            return None
        numbers = [environ.get(name, "") for name in MPI_RANK_VARIABLES]
        return next((int(number) for number in numbers if number.isdigit()), None)

    def is_keeper(self, process: int) -> bool:
        """Return whether a process is a keeper that forwards a rank's output in this job."""
        return keeper.options_of(proc.arguments(process)).get("job") == self.home.job

    def _welcome(self, link: messages.Link, number: int) -> None:
        """Send a rank the standard input and error that this process provides for it."""
        handed = {}
        if number == 0 and self._input is not None:
            handed[contract.INPUT], self._input = self._input, None
        if self._terminal is not None:
            handed[contract.ERRORS] = self._terminal.errors(number)
        link.send({"do": contract.BEGINS, "hands": list(handed)}, files=list(handed.values()))
        for descriptor in handed.values():
            os.close(descriptor)


def new_folder() -> Path:
    """Create a job's folder for temporary files.

    Raises:
        UsageError: the folder cannot be created.
    """
    # Python would ignore an unusable TMPDIR and take /tmp, which may be full.
    wanted = os.environ.get("TMPDIR")
    try:
        within = os.path.abspath(wanted) if wanted else None
        return Path(tempfile.mkdtemp(prefix="tf_hvd-", dir=within))
    except OSError as error:
        where = f"TMPDIR={wanted}" if wanted else "the temporary folder"
        raise UsageError(
            f"cannot create a folder in {where}: {error.strerror}; set TMPDIR to a writable folder"
        ) from error


def _copy_terminal(to: int, over: threading.Event) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTIN})
    typed = select.poll()
    typed.register(0, select.POLLIN)
    foreground = select.poll()
    with contextlib.suppress(OSError):
        while not over.is_set():
            if not typed.poll(_FOREGROUND_MILLISECONDS) or over.is_set():
                continue
            if os.tcgetpgrp(0) != os.getpgrp():
                foreground.poll(_FOREGROUND_MILLISECONDS)
                continue
            text = os.read(0, 4096)
            if not text:
                break
            write_all(to, text)
    os.close(to)
