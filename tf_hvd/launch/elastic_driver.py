"""`tf_hvd run --min-np`: starts a job again when ranks have ended, and when hosts come or go.

Each start is a `tf_hvd run` of its own, as a child. What the ranks have committed lies in stores,
one on each host, which live as long as this process.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import pickle
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tf_hvd.core import commit_store
from tf_hvd.launch import interpreter, processes, run, supervise
from tf_hvd.launch.allocation import allocation
from tf_hvd.launch.elastic_hosts import Cooldown, Hosts, parse_discovered, slots_of
from tf_hvd.launch.elastic_stores import Stores
from tf_hvd.launch.environment import without_launcher
from tf_hvd.launch.errors import UsageError
from tf_hvd.launch.grace import Reach, by_ssh
from tf_hvd.launch.host_check import ssh_command
from tf_hvd.launch.hosts import Host, all_local
from tf_hvd.launch.job_watch import say
from tf_hvd.launch.launchers import find_launcher

_POLL = 1.0  # seconds between two looks for hosts, as Horovod's
_LOOK = 0.25
_SCRIPT = 60.0  # seconds that a discovery script may take
# So many starts in a row that have not come to a commit of their own end the job.
_IN_VAIN = 3
_GRACE = 15.0  # seconds more than the start itself gives its ranks
_FAILED = 1
_REFUSED = "refused"  # the file by which a start says that it cannot be made at all
_ELASTIC_ALONE = {
    "max_np": "max-np",
    "reset_limit": "reset-limit",
    "slots_per_host": "slots-per-host",
    "cooldown": "blacklist-cooldown-range",
}
_ASK = '"$0"; echo "exit $?"'  # the exit code of a child may be taken by who waits for another one


def is_asked_for(options: argparse.Namespace) -> bool:
    """Whether the options ask for an elastic job."""
    return options.min_np is not None or options.host_discovery_script is not None


def check(options: argparse.Namespace) -> None:
    """Refuses options that do not go together.

    Raises:
        UsageError: they do not.
    """
    if not is_asked_for(options):
        for name, flag in _ELASTIC_ALONE.items():
            if getattr(options, name) is not None:
                raise UsageError(f"--{flag} is for elastic jobs: give --min-np too")
        return
    _check_numbers(options.np, options.min_np, options.max_np)
    least, most = options.cooldown or (1, 1)
    if not 1 <= least <= most <= 3600:
        raise UsageError(
            f"--blacklist-cooldown-range {least:g} {most:g}: give seconds from 1 to 3600, the "
            "smaller number first"
        )
    if options.host_discovery_script and (options.hosts or options.hostfile):
        raise UsageError("--host-discovery-script finds the hosts: leave -H and --hostfile out")


def _check_numbers(wanted: int | None, least: int | None, most: int | None) -> None:
    if wanted is not None and least is not None and wanted < least:
        raise UsageError(f"-np {wanted} is less than --min-np {least}")
    first = wanted or least or 1
    if most is not None and most < first:
        raise UsageError(f"--max-np {most} is less than the {first} ranks to begin with")


class _Discovery:
    """Looks for hosts again and again, by a thread of its own.

    Args:
        script: prints them.
        slots: of a host of which it does not say.
    """

    def __init__(self, script: str, slots: int | None) -> None:
        self._script, self._slots = os.path.abspath(script), slots
        self._found = self.ask()
        threading.Thread(target=self._run, name="discovery", daemon=True).start()

    def found(self) -> tuple[Host, ...]:
        """The hosts that are there."""
        return self._found

    def ask(self) -> tuple[Host, ...]:
        """Asks the script.

        Raises:
            UsageError: it cannot be run, fails, or prints something else than hosts.
        """
        try:
            asked = subprocess.run(
                ["/bin/sh", "-c", _ASK, self._script],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
                timeout=_SCRIPT,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UsageError(f"--host-discovery-script {self._script}: {error}") from error
        text, _, code = asked.stdout.rpartition("exit ")
        if code.strip() != "0":
            raise UsageError(
                f"--host-discovery-script {self._script} ended with exit code {code.strip()}"
            )
        return parse_discovered(text, self._slots)

    def _run(self) -> None:
        told = ""
        while True:
            time.sleep(_POLL)
            try:
                self._found = self.ask()
                told = ""
            except UsageError as error:  # what was there is taken to be there still
                if str(error) != told:
                    say(f"tf_hvd run: {error}; asked again")
                told = str(error)


@dataclass(frozen=True)
class _End:
    """How one start ended."""

    code: int
    asked: bool
    agreed: bool
    """Whether the ranks ended since there are other hosts."""
    host: str = ""
    """Where the rank ran that was the first to fail; empty: not known."""


class _Watch:
    """Looks on while one start runs: whether hosts come or go."""

    def __init__(self, driver: Driver, hosts: tuple[Host, ...]) -> None:
        self._driver, self._hosts = driver, hosts
        self._told = 0

    def started(self, process: int) -> None:
        """The start runs."""

    def look(self) -> float | None:
        """Tells the ranks if there are other hosts than theirs."""
        says = self._driver.change(self._hosts)
        if says & ~self._told:
            self._told |= says
            self._driver.notify(says)
        return _LOOK

    def hand_on(self, signum: int, grace: float) -> bool:
        """The start gets it itself."""
        return False

    def grace_is_over(self) -> None:
        """It has not ended."""

    def fate(self, process: int) -> supervise.Fate:
        """Stores outlive it, and what they have started."""
        stays = process in self._driver.stores.processes()
        stays = stays or processes.name(process) == commit_store.STANDBY_NAME
        return supervise.Fate.LEFT if stays else supervise.Fate.KILLED


class Driver:
    """One elastic job.

    Args:
        options: of `tf_hvd run`.
        environ: of the ranks.
        folder: for files of this process.
    """

    def __init__(
        self, options: argparse.Namespace, environ: Mapping[str, str], folder: Path
    ) -> None:
        self._options, self._environ, self._folder = options, environ, folder
        self._token = secrets.token_hex(8)
        cooldown = Cooldown(*options.cooldown) if options.cooldown else None
        self._hosts = Hosts(cooldown)
        self._discovery: _Discovery | None = None
        self._np = options.np or options.min_np
        self._least = options.min_np or self._np
        self._notices = 0
        self.stores = Stores(self._token, self._reach(), self._is_here, self._python())
        """The commit stores of the hosts."""

    def run(self) -> int:
        """Runs the job to its end; returns its exit code."""
        if self._options.host_discovery_script:
            self._discovery = _Discovery(
                self._options.host_discovery_script, self._options.slots_per_host
            )
        else:
            self._hosts.found(self._fixed_hosts())
        restarts, in_vain, reached = 0, 0, 0
        while True:
            hosts = self._wait_for_hosts(self._least if restarts else self._np)
            ranks = slots_of(hosts)
            if restarts:
                say(self._again_text(restarts, ranks, hosts))
            end = self._start(hosts, ranks, restarts)
            if end.asked or end.code == 0 or (self._folder / _REFUSED).exists():
                return end.code
            restarts += 1
            newest = self.stores.newest()
            went_on, reached = newest > reached, max(newest, reached)
            in_vain = 0 if went_on or end.agreed else in_vain + 1
            if went_on:
                self._hosts.went_on()
            self._note_failure(end, hosts)
            if why := self._gives_up(restarts, in_vain):
                say(f"tf_hvd run: not started again: {why}")
                return end.code if end.code != commit_store.START_AGAIN else _FAILED

    def change(self, hosts: tuple[Host, ...]) -> int:
        """What to tell the ranks of a start on these hosts; 0: nothing."""
        if self._discovery is None:
            return 0
        self._hosts.found(self._discovery.found())
        usable = {host.name: host.slots for host in self._chosen()}
        running = {host.name: host.slots for host in hosts}
        says = 0
        if any(usable.get(name, 0) < slots for name, slots in running.items()):
            says |= commit_store.REMOVED
        if any(running.get(name, 0) < slots for name, slots in usable.items()):
            says |= commit_store.ADDED
        # Fewer than are needed would only be ended.
        return says if sum(usable.values()) >= self._least else 0

    def notify(self, says: int) -> None:
        """Tells all ranks, which end at a commit that they agree on."""
        self._notices += 1
        self.stores.notify(self._notices, says)

    def _start(self, hosts: tuple[Host, ...], ranks: int, number: int) -> _End:
        names = [host.name for host in hosts]
        self.stores.begin(names, number)
        report = self._folder / "report"
        report.unlink(missing_ok=True)
        options = self._options_of(hosts, ranks, report)
        file = self._folder / "options"
        file.write_bytes(pickle.dumps(options))
        command = [sys.executable, "-P", "-m", "tf_hvd.launch.elastic_driver", str(file)]
        environ = {
            **without_launcher(self._environ),
            commit_store.JOB_VARIABLE: f"{self._token}:{number}",
        }
        ending = supervise.supervise(
            command,
            environ,
            watch=_Watch(self, hosts),
            grace=self._options.grace + _GRACE,
        )
        failed = report.exists()
        agreed = ending.code == commit_store.START_AGAIN and not failed
        return _End(ending.code, ending.asked, agreed, report.read_text() if failed else "")

    def _options_of(self, hosts: tuple[Host, ...], ranks: int, report: Path) -> argparse.Namespace:
        given = vars(self._options)
        kept = {name: value for name, value in given.items() if name not in run.NOT_PASSED_ON}
        kept |= {"np": ranks, "hostfile": None, "report": str(report)}
        if self._discovery or self._options.hosts or self._options.hostfile:
            kept["hosts"] = ",".join(map(str, hosts))
        return argparse.Namespace(**kept)

    def _wait_for_hosts(self, wanted: int) -> tuple[Host, ...]:
        """The hosts of the next start.

        Raises:
            UsageError: in `--elastic-timeout` there are not enough.
        """
        until = time.monotonic() + self._options.elastic_timeout
        told = False
        while True:
            if self._discovery:
                self._hosts.found(self._discovery.found())
            hosts = self._chosen()
            if slots_of(hosts) >= (wanted if time.monotonic() < until else self._least):
                lost = self.stores.start([host.name for host in hosts])
                if not lost:
                    return hosts
                for name in lost:
                    if self._is_here(name):
                        raise UsageError("the commit store of this machine could not be started")
                    say(f"tf_hvd run: {name} cannot be reached, and is left out")
                    self._hosts.lost(name, time.monotonic())
                continue
            if time.monotonic() >= until:
                raise UsageError(
                    f"there are hosts for {slots_of(hosts)} ranks, and the job needs "
                    f"{self._least}: --elastic-timeout "
                    f"{self._options.elastic_timeout:g} s are over"
                )
            if not told:
                told = True
                say(f"tf_hvd run: waiting for hosts: {slots_of(hosts)} of {wanted} ranks have one")
            time.sleep(_LOOK)

    def _chosen(self) -> tuple[Host, ...]:
        """The hosts of a start now, with the slots that it would use."""
        left = self._options.max_np or sys.maxsize
        chosen = []
        for host in self._hosts.usable(time.monotonic()):
            taken = min(host.slots, left)
            if taken:
                chosen.append(Host(host.name, taken))
            left -= taken
        return tuple(chosen)

    def _fixed_hosts(self) -> tuple[Host, ...]:
        if self._options.hosts or self._options.hostfile:
            return run.given_hosts(self._options)
        if self._np is None:
            raise UsageError("the number of ranks is missing; for example -np 2")
        found = allocation(self._environ)
        if found is not None and not all_local(found.hosts, socket.gethostname()):
            hosts = ",".join(map(str, found.hosts))
            raise UsageError(
                f"an elastic job does not take the hosts of {found.scheduler} by itself: give "
                f"-H {hosts}, if ssh reaches them"
            )
        return (Host("localhost", self._np),)

    def _note_failure(self, end: _End, hosts: tuple[Host, ...]) -> None:
        now = time.monotonic()
        for name in self.stores.lost([host.name for host in hosts]):
            if not self._is_here(name):  # its store may be lost, and is started again
                self._hosts.lost(name, now)
        names = [host.name for host in hosts if host.name.partition(".")[0] == end.host]
        blamed = names[0] if names and len(hosts) > 1 else ""
        if blamed and self._hosts.failed(blamed, now):
            say(f"tf_hvd run: {blamed} is left out: ranks failed there")

    def _gives_up(self, restarts: int, in_vain: int) -> str:
        limit = self._options.reset_limit
        if limit is not None and restarts > limit:
            return f"--reset-limit {limit}"
        if in_vain >= _IN_VAIN:
            return f"{in_vain} starts in a row have not come to a commit"
        return ""

    def _again_text(self, restarts: int, ranks: int, hosts: tuple[Host, ...]) -> str:
        where = "" if len(hosts) == 1 else " on " + ",".join(map(str, hosts))
        newest = self.stores.newest()
        commit = f"from commit {newest} or the one before" if newest else "from the beginning"
        return (
            f"tf_hvd run: starting again with {ranks} ranks{where}, {commit} (restart {restarts})"
        )

    def _is_here(self, name: str) -> bool:
        return all_local([Host(name, 1)], socket.gethostname())

    def _python(self) -> str:
        return interpreter.python_of(self._options.command[0], self._environ) or sys.executable

    def _reach(self) -> Reach:
        """How commands get to other machines, as the launcher of the ranks does."""

        @functools.lru_cache(1)
        def ssh() -> list[str]:
            launcher = find_launcher(self._options.mpi, self._environ)
            family = launcher.family if launcher else "openmpi"
            environ = {**self._environ}
            environ |= run.ssh_settings(family, self._options, environ)
            return ssh_command(family, environ)

        return lambda host, words: by_ssh(ssh())(host, words)


def drive(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Runs an elastic job; returns its exit code.

    Args:
        options: of `tf_hvd run`.
        environ: to start it in.

    Raises:
        UsageError: it cannot be started as asked.
    """
    with _folder() as folder:
        driver = Driver(options, environ, folder)
        try:
            return driver.run()
        finally:
            driver.stores.close()


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="tf_hvd-elastic-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main(arguments: Sequence[str]) -> int:
    """One start.

    Args:
        arguments: the file with its options.
    """
    file = Path(*arguments)
    try:
        with supervise.ending_with_parent(file.parent):
            options: argparse.Namespace = pickle.loads(file.read_bytes())
            return run.run(options, os.environ)
    except UsageError as error:
        say(f"tf_hvd run: {error}")
        (file.parent / _REFUSED).touch()
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
