"""Where an elastic job gets its hosts: the user, a scheduler, or a script that is asked again."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping

from tf_hvd.launch.elastic.hosts import parse_discovered
from tf_hvd.launch.errors import UsageError
from tf_hvd.launch.job import signals
from tf_hvd.launch.job.allocation import allocation
from tf_hvd.launch.job.asked import given_hosts
from tf_hvd.launch.job.environment import is_rank
from tf_hvd.launch.job.hosts import FEWER_RANKS, Host, all_local, check_slots
from tf_hvd.launch.job.job_watch import say

SLURM_JOB = "SLURM_JOB_ID"
"""By this variable one knows that it is Slurm's."""
_POLL = 1.0  # seconds between two looks for hosts, as Horovod's
_SCRIPT = 60.0  # seconds that a discovery script may take
_MOST = 1 << 16  # bytes that it may print
_ASK = '"$0"; echo "exit $?"'  # the exit code of a child may be taken by who waits for another one


class Discovery:
    """Looks for hosts again and again, by a thread of its own.

    Args:
        script: prints them.
        slots: of a host of which it does not say.

    Raises:
        UsageError: the script cannot be run, fails, or prints something else than hosts.
    """

    def __init__(self, script: str, slots: int | None) -> None:
        self._script, self._slots = os.path.abspath(script), slots
        self.scripts: set[int] = set()
        """The processes that are being asked: by this object's thread, and by who calls `look`."""
        self._found = self._ask()
        self._told = ""
        with signals.deaf():
            threading.Thread(target=self._run, name="discovery", daemon=True).start()

    def found(self) -> tuple[Host, ...]:
        return self._found

    def _ask(self) -> tuple[Host, ...]:
        asked = f"--host-discovery-script {self._script}"
        try:
            printed = self._printed()
        except subprocess.TimeoutExpired as error:
            raise UsageError(f"{asked} did not end within {_SCRIPT:g} s") from error
        except OSError as error:
            raise UsageError(f"{asked}: {error}") from error
        if len(printed) > _MOST:
            raise UsageError(
                f"{asked} printed more than {_MOST >> 10} KiB, and was ended; print one line "
                "HOST:SLOTS for each host"
            )
        lines, _, code = printed.rpartition(b"exit ")
        try:
            text = lines.decode()
        except UnicodeDecodeError as error:
            line = printed[: error.start].count(b"\n") + 1
            raise UsageError(
                f"{asked} printed bytes that are no UTF-8 text, in line {line}: "
                f"{lines[error.start : error.start + 20]!r}"
            ) from error
        if code.strip() != b"0":
            ended = code.decode(errors="replace").strip()
            raise UsageError(f"{asked} ended with exit code {ended}")
        return parse_discovered(text, self._slots)

    def _printed(self) -> bytes:
        """What the script prints; a byte more than `_MOST` where it is more than that.

        Raises:
            OSError: it cannot be run.
            subprocess.TimeoutExpired: it takes too long, and is ended, with what it has started.
        """
        asked = subprocess.Popen(
            ["/bin/sh", "-c", _ASK, self._script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=signals.unblock,
        )
        assert asked.stdout is not None
        self.scripts.add(asked.pid)
        until, printed, ended = time.monotonic() + _SCRIPT, b"", False
        try:
            while not ended and len(printed) <= _MOST:
                left = until - time.monotonic()
                if left <= 0 or not select.select([asked.stdout], [], [], left)[0]:
                    raise subprocess.TimeoutExpired(asked.args, _SCRIPT)
                piece = os.read(asked.stdout.fileno(), _MOST + 1 - len(printed))
                printed += piece
                if not piece:
                    asked.wait(max(0.1, until - time.monotonic()))
                    ended = True
            return printed
        finally:  # also where a signal ends the job
            if not ended:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(asked.pid, signal.SIGKILL)
            asked.communicate()  # until all that it has started has ended
            self.scripts.discard(asked.pid)

    def look(self) -> None:
        """Asks the script now: what has ended a start may have changed the hosts."""
        try:
            self._found = self._ask()
            self._told = ""
        except UsageError as error:  # what was there is taken to be there still
            if str(error) != self._told:
                say(f"tf_hvd run: {error}; asked again")
            self._told = str(error)

    def _run(self) -> None:
        while True:
            time.sleep(_POLL)
            self.look()


def fixed_hosts(
    options: argparse.Namespace, environ: Mapping[str, str], ranks: int
) -> tuple[Host, ...]:
    """The hosts that a job without a script has; empty: this machine alone, which needs no name.

    Raises:
        UsageError: they cannot be read, are too few, or are not to be reached.
    """
    if options.hosts or options.hostfile:
        given = given_hosts(options)
        check_slots(given, ranks, FEWER_RANKS)
        return given
    # A rank that starts a job starts it beside itself.
    found = None if is_rank(environ) else allocation(environ)
    if found is None or all_local(found.hosts, socket.gethostname()):
        return ()
    if SLURM_JOB not in environ:
        hosts = ",".join(map(str, found.hosts))
        raise UsageError(
            f"an elastic job does not take the hosts of {found.scheduler} by itself: give "
            f"-H {hosts}, if ssh reaches them"
        )
    check_slots(found.hosts, ranks, f"{found.cure}, or list hosts with -H")
    return found.hosts
