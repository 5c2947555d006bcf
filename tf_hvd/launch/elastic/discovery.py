"""The hosts of an elastic job, as listed by the user, a scheduler or a discovery script."""

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
"""The environment variable that identifies a Slurm job."""
_POLL = 1.0  # seconds between two runs of the script, as in Horovod
_SCRIPT = 60.0  # time limit of a discovery script, in seconds
_MOST = 1 << 16  # maximum size of the script's output, in bytes
# Prints the exit code, because another thread may collect the process by waiting for any child.
_ASK = '"$0"; echo "exit $?"'


class Discovery:
    """A thread that runs a discovery script every second.

    Args:
        script: path of a program that prints the hosts.
        slots: slots of hosts that the script prints without a number; None if each host must have
            a number.

    Raises:
        UsageError: the script cannot be run, fails, or prints text that is not a list of hosts.
    """

    def __init__(self, script: str, slots: int | None) -> None:
        self._script, self._slots = os.path.abspath(script), slots
        self.scripts: set[int] = set()
        """Process ids of the running scripts, started by this object's thread or by `look`."""
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
            raise UsageError(
                f"{asked} did not end within {_SCRIPT:g} s; make it print the hosts faster"
            ) from error
        except OSError as error:
            raise UsageError(f"{asked}: {error}") from error
        if len(printed) > _MOST:
            raise UsageError(
                f"{asked} was ended because it printed more than {_MOST >> 10} KiB; print one line "
                "HOST:SLOTS for each host"
            )
        lines, _, code = printed.rpartition(b"exit ")
        try:
            text = lines.decode()
        except UnicodeDecodeError as error:
            line = printed[: error.start].count(b"\n") + 1
            raise UsageError(
                f"{asked} printed bytes that are not UTF-8, in line {line}: "
                f"{lines[error.start : error.start + 20]!r}"
            ) from error
        if code.strip() != b"0":
            ended = code.decode(errors="replace").strip()
            raise UsageError(f"{asked} ended with exit code {ended}; run it yourself to see why")
        return parse_discovered(text, self._slots)

    def _printed(self) -> bytes:
        """Run the script and return its output, cut after `_MOST` + 1 bytes.

        Raises:
            OSError: the script cannot be run.
            subprocess.TimeoutExpired: the script took too long and was killed with its children.
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
        finally:  # also if a signal ends the job
            if not ended:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(asked.pid, signal.SIGKILL)
            asked.communicate()  # waits until all its children have ended
            self.scripts.discard(asked.pid)

    def look(self) -> None:
        """Run the script now and update the hosts; on an error, keep the previous hosts."""
        try:
            self._found = self._ask()
            self._told = ""
        except UsageError as error:  # keep the previous hosts
            if str(error) != self._told:
                say(f"tf_hvd run: {error}; the script will be run again")
            self._told = str(error)

    def _run(self) -> None:
        while True:
            time.sleep(_POLL)
            self.look()


def fixed_hosts(
    options: argparse.Namespace, environ: Mapping[str, str], ranks: int
) -> tuple[Host, ...]:
    """Return the hosts of a job without a discovery script; empty to use only this machine.

    Raises:
        UsageError: the hosts cannot be parsed, have too few slots, or need a launcher that elastic
            jobs do not support.
    """
    if options.hosts or options.hostfile:
        given = given_hosts(options)
        check_slots(given, ranks, FEWER_RANKS)
        return given
    # A job started by a rank runs on that rank's machine.
    found = None if is_rank(environ) else allocation(environ)
    if found is None or all_local(found.hosts, socket.gethostname()):
        return ()
    if SLURM_JOB not in environ:
        hosts = ",".join(map(str, found.hosts))
        raise UsageError(
            f"an elastic job does not use the hosts of {found.scheduler} automatically: if ssh "
            f"reaches them, add -H {hosts}"
        )
    check_slots(found.hosts, ranks, f"{found.cure}, or list hosts with -H")
    return found.hosts
