"""What `tf_hvd run` and the ranks on its machine have of each other while a job runs.

The agent's socket, at which a rank gets what comes from here, its standard input and error, and
which hears all that ranks say; and a folder, for the files of MPI's own.
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
_ROOM = 1 << 18  # bytes of the temporary folder: MPI's and our own files take less


class Home(contextlib.AbstractContextManager["Home"]):
    """What a job has on this machine for all of its starts. A context.

    The agent; the commits of an elastic job; and who clears what is left if this process is killed.
    """

    def __init__(self, commits: Commits | None = None) -> None:
        self.job = f"tf_hvd-{secrets.token_hex(8)}"
        self.traces = Traces(self.job)  # forks
        self._commits = commits
        self.lost: dict[str, int] = {}
        """What could not be written of its output, as `Writer` has it (lines.py)."""
        self.session: Session | None = None
        """The start that runs; for that one alone."""
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
        session = self.session  # which may end meanwhile
        if self._commits and "round" in message:
            self._commits.answer(link, message, load)
        elif session is not None:
            session.hear(link, message, load)


class Session(contextlib.AbstractContextManager["Session"]):
    """One start of a job. A context: at its end nothing of it is left.

    Args:
        gives_input: whether rank 0 runs on this machine and gets its standard input.
        outer: the job that a rank of which started this one; empty if none did.
        terminal: reads the standard errors of this machine's ranks; None: they keep what they have.
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
        # MPI keeps files there as well, and says but little of a folder that is full.
        room = self.folder / "room"
        try:
            with files.writing(room) as file:
                file.write(bytes(_ROOM))
            room.unlink()
        except OSError as error:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise UsageError(
                f"the temporary folder {self.folder.parent} has no room for the {_ROOM >> 10} KiB "
                f"that a job needs there: {error.strerror}; remove old files, or set TMPDIR to a "
                "folder with more room"
            ) from error
        self.home = home
        self.state = JobState(self.folder.name)
        """What is known of its ranks."""
        self._outer = outer
        self._terminal = terminal
        # What rank 0 reads: this process's own input, so that nothing but the rank consumes it. And
        # what the terminal is to be copied into, if that is where the input comes from: a rank is
        # in its background, where reading would stop it, so that we read for it.
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
        """Begins to answer the ranks. Starts threads, beside which later starts are forked."""
        if self._typed is not None:
            arguments = (self._typed, self._over)
            threading.Thread(target=_copy_terminal, args=arguments, daemon=True).start()
        self.home.serve()

    def hear(self, link: messages.Link, message: dict[str, Any], load: bytes) -> None:
        if message["do"] == contract.BEGINS:
            number = int(message["rank"])
            if message["process"] != messages.peer(link.socket)[0]:
                # It is in a container of this machine, where processes have other numbers.
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
        """The rank of this job that a process is of; none also of its keeper."""
        environ = proc.environment(process)
        if environ.get(contract.JOB) != self.home.job or rank.__file__ in proc.arguments(process):
            return None
        numbers = [environ.get(name, "") for name in MPI_RANK_VARIABLES]
        return next((int(number) for number in numbers if number.isdigit()), None)

    def is_keeper(self, process: int) -> bool:
        """Whether a process is the keeper of a rank of this job: it hands on what that has said."""
        return keeper.options_of(proc.arguments(process)).get("job") == self.home.job

    def _welcome(self, link: messages.Link, number: int) -> None:
        """Hands a rank its standard input and error, as far as they come from here."""
        handed = {}
        if number == 0 and self._input is not None:
            handed[contract.INPUT], self._input = self._input, None
        if self._terminal is not None:
            handed[contract.ERRORS] = self._terminal.errors(number)
        link.send({"do": contract.BEGINS, "hands": list(handed)}, files=list(handed.values()))
        for descriptor in handed.values():
            os.close(descriptor)


def new_folder() -> Path:
    """Makes a job's folder for temporary files.

    Raises:
        UsageError: it cannot be made.
    """
    # Python would pass over a TMPDIR that cannot be used, and take /tmp, which may be full.
    wanted = os.environ.get("TMPDIR")
    try:
        within = os.path.abspath(wanted) if wanted else None
        return Path(tempfile.mkdtemp(prefix="tf_hvd-", dir=within))
    except OSError as error:
        where = f"TMPDIR={wanted}" if wanted else "the temporary folder"
        raise UsageError(
            f"no folder can be made in {where}: {error.strerror}; set TMPDIR to a folder that you "
            "can write to"
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
