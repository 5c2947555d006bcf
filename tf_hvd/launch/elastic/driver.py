"""`tf_hvd run --min-np`: restart a job when ranks fail and when hosts are added or removed.

The agents on the hosts store the ranks' commits. This process is this machine's agent.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from tf_hvd.core import config, contract
from tf_hvd.launch.elastic.agents import Agents
from tf_hvd.launch.elastic.discovery import SLURM_JOB, Discovery, fixed_hosts
from tf_hvd.launch.elastic.hosts import Hosts, slots_of
from tf_hvd.launch.errors import HostsError, UsageError
from tf_hvd.launch.job import interpreter, run, signals
from tf_hvd.launch.job.asked import ssh_arguments
from tf_hvd.launch.job.environment import is_rank, without_launcher
from tf_hvd.launch.job.far_agent import FarAgent
from tf_hvd.launch.job.hosts import Host, all_local, is_address, is_same
from tf_hvd.launch.job.job_watch import Observer, say
from tf_hvd.launch.job.launchers import find_launcher
from tf_hvd.launch.job.remote_commands import Reach, by_srun, by_ssh, ssh_command
from tf_hvd.launch.job.run import End
from tf_hvd.launch.job.session import Home
from tf_hvd.launch.machine import proc
from tf_hvd.launch.machine.commits import Commits, Parts

_LOOK = 0.25
# The job ends after this number of consecutive starts without a new commit.
_MOST_FRUITLESS = 3
_FAILED = 1
_GONE = (
    "tf_hvd run: the job's commits were only in memory, and are lost; set TF_HVD_COMMIT_DIR=FOLDER "
    "to keep the last commit on disk, so that the same command can resume the next job"
)
_ELASTIC_ONLY = {
    "max_np": "max-np",
    "reset_limit": "reset-limit",
    "slots_per_host": "slots-per-host",
    "cooldown": "blacklist-cooldown-range",
}


def is_asked_for(options: argparse.Namespace) -> bool:
    """Return whether the options ask for an elastic job.

    Raises:
        UsageError: the options contradict each other.
    """
    if options.min_np is None and options.host_discovery_script is None:
        for name, flag in _ELASTIC_ONLY.items():
            if getattr(options, name) is not None:
                raise UsageError(f"--{flag} is only for elastic jobs: add --min-np")
        return False
    first, smallest, largest = _ranks_at_first(options), options.min_np or 1, options.max_np
    if first < smallest:
        raise UsageError(f"-np {first} is less than --min-np {smallest}; raise -np")
    if largest is not None and largest < first:
        raise UsageError(
            f"--max-np {largest} is less than the initial {first} ranks; raise --max-np"
        )
    least, most = options.cooldown or (1, 1)
    if not 1 <= least <= most <= 3600:
        raise UsageError(
            f"--blacklist-cooldown-range {least:g} {most:g} is invalid: give two numbers of "
            "seconds from 1 to 3600, the smaller one first"
        )
    if options.host_discovery_script and (options.hosts or options.hostfile):
        raise UsageError(
            "--host-discovery-script cannot be combined with -H or --hostfile: remove one option"
        )
    return True


class Driver:
    """One elastic job. As an `Observer`, it watches the hosts during each start of the job.

    Args:
        options: the options for `tf_hvd run`.
        agents: the agents of the job's hosts.
        parts: the parts of commits stored by this process.
        start: runs one start of the job; takes the hosts and an observer (this object).
        fixed: the hosts of a job without a discovery script.
        discovery: finds the hosts; None to use the hosts in `fixed`.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        agents: Agents,
        parts: Parts,
        start: Callable[[Sequence[Host], Observer], End],
        fixed: Sequence[Host] = (),
        discovery: Discovery | None = None,
    ) -> None:
        self._options, self._start, self._discovery = options, start, discovery
        self._agents, self._parts = agents, parts
        self._hosts = Hosts(options.cooldown)
        self._hosts.found(fixed)
        self._np = _ranks_at_first(options)
        self._least = options.min_np or self._np
        self.number = 0
        """The number of the current start, counted from 0: the number of restarts so far."""
        self._running: tuple[Host, ...] = ()  # hosts of this start, with the slots that it uses
        self._told = 0  # changes announced to its ranks, which then end without a failure
        self._reached = 0  # the newest commit that all ranks have written

    def run(self) -> int:
        """Run the job until it ends and return its exit code."""
        fruitless = 0
        while True:
            hosts = self._running = self._wait_for_hosts()
            if self.number:
                say(self._again_text(hosts))
            names = [host.name for host in hosts]
            self._agents.keep([*names, *self._hosts.names()])
            self._agents.begin(names, self.number)
            self._told = 0
            try:
                end = self._start(hosts, self)
            except HostsError as error:
                self._leave_out(error.wrong, names)
                continue
            newest = self._parts.newest(slots_of(hosts))
            commit_made, self._reached = newest > self._reached, max(newest, self._reached)
            if end.asked or end.code == 0:
                if end.asked and self._reached and not config.COMMIT_DIR.read():
                    say(_GONE)
                return end.code
            self.number += 1
            # Ranks that ended because another rank failed have the same exit code.
            agreed = self._told and end.code == contract.START_AGAIN
            fruitless = 0 if commit_made else fruitless + (not agreed)
            if commit_made:
                self._hosts.commit_made()
            self._note_failure(end, names)
            if self._gives_up(fruitless):
                return end.code if end.code != contract.START_AGAIN else _FAILED

    def look(self) -> float:
        """Notify the ranks if the hosts have changed, so that all ranks end at the same commit.

        Returns:
            Seconds until the next call.
        """
        self._agents.revive(host.name for host in self._running)
        says = self._change() if self._discovery else 0
        if says & ~self._told:
            self._told |= says
            self._agents.notify(self._told)
        return _LOOK

    def spares(self, process: int) -> bool:
        """Return whether a process belongs to an agent's connection or a discovery script."""
        own = self._agents.processes() | (self._discovery.scripts if self._discovery else set())
        return not own.isdisjoint({process, *proc.ancestors(process)})

    def agent(self, host: str) -> FarAgent | None:
        return self._agents.of(host)

    def _change(self) -> int:
        """Return the changes in hosts to announce, as bits of `contract`; 0 for no change."""
        usable = {host.name: host.slots for host in self._chosen()}
        running = {host.name: host.slots for host in self._running}
        # Ranks must not be restarted to add a host that cannot be reached.
        answers = self._agents.look_for([name for name in usable if name not in running])
        for name, answer in answers.items():
            if not answer:
                del usable[name]
            if answer is False:
                self._lose(name)
        says = 0
        if any(usable.get(name, 0) < slots for name, slots in running.items()):
            says |= contract.REMOVED
        if any(running.get(name, 0) < slots for name, slots in usable.items()):
            says |= contract.ADDED
        # With fewer slots than needed, the job could not restart.
        return says if sum(usable.values()) >= self._least else 0

    def _wait_for_hosts(self) -> tuple[Host, ...]:
        """Wait until enough hosts are available, and return the hosts for the next start.

        Raises:
            UsageError: `--elastic-timeout` has passed without enough hosts.
        """
        wanted = self._least if self.number else self._np
        until = time.monotonic() + self._options.elastic_timeout
        told = False
        if self.number and self._discovery:
            self._discovery.look()
        while True:
            hosts = self._chosen()
            if slots_of(hosts) >= (wanted if time.monotonic() < until else self._least):
                names = [host.name for host in hosts]
                lost = self._agents.start(names)
                if not lost:
                    self._hosts.reached(names)
                    return hosts
                for name in lost:
                    if not self.number and self._discovery is None:
                        raise UsageError(
                            f"host {name} cannot be reached; check its name and the connection by "
                            "ssh or srun"
                        )
                    self._lose(name)
                continue
            if time.monotonic() >= until:
                raise UsageError(
                    f"only {slots_of(hosts)} of the {self._least} slots that the job needs became "
                    f"available within --elastic-timeout ({self._options.elastic_timeout:g} s); "
                    "check the hosts, or raise --elastic-timeout"
                )
            if not told:
                told = True
                say(
                    f"tf_hvd run: waiting for hosts: {slots_of(hosts)} of {wanted} slots are "
                    "available"
                )
            time.sleep(_LOOK)

    def _chosen(self) -> tuple[Host, ...]:
        """Return the hosts that a start would use now, with the number of slots used on each."""
        if self._discovery:
            self._hosts.found(self._discovery.found())
        left = self._options.max_np or sys.maxsize
        chosen = []
        for host in self._hosts.usable(time.monotonic()):
            taken = min(host.slots, left)
            if taken:
                chosen.append(Host(host.name, taken))
            left -= taken
        return tuple(chosen)

    def _lose(self, name: str) -> None:
        delay = self._hosts.lost(name, time.monotonic())
        say(f"tf_hvd run: {name} cannot be reached and is excluded for {delay:.0f} s")

    def _leave_out(self, unfit: Sequence[tuple[str, str]], names: Sequence[str]) -> None:
        """Exclude hosts that turned out to be unable to run ranks.

        Args:
            unfit: the name of each such host and its fault.
            names: all hosts used in the start.

        Raises:
            UsageError: this machine is unfit. Also at the first start, if all hosts or a host that
                the user named are unfit.
        """
        found = {name for name, _ in unfit}
        at_first = not self.number and (self._discovery is None or found >= set(names))
        if at_first or any(map(_is_here, found)):
            raise UsageError("\n".join(why for _, why in unfit))
        for name, why in unfit:
            delay = self._hosts.unfit(name, time.monotonic())
            say(f"tf_hvd run: {why}; it is excluded for {delay:.0f} s")

    def _note_failure(self, end: End, names: Sequence[str]) -> None:
        for name in self._agents.lost(names):
            if name in self._hosts.names():  # discovery may have dropped it
                self._lose(name)
        blamed = _named(end.host, names) if len(names) > 1 else ""
        if blamed and self._hosts.failed(blamed, time.monotonic()):
            say(f"tf_hvd run: {blamed} is excluded: ranks failed there")

    def _gives_up(self, fruitless: int) -> bool:
        limit = self._options.reset_limit
        if limit is not None and self.number > limit:
            why = f"--reset-limit {limit} is reached"
        elif fruitless >= _MOST_FRUITLESS:
            why = f"{fruitless} starts in a row ended before all ranks had made a commit"
        else:
            return False
        say(f"tf_hvd run: giving up: {why}")
        return True

    def _again_text(self, hosts: tuple[Host, ...]) -> str:
        where = "" if len(hosts) == 1 else " on " + ",".join(map(str, hosts))
        commit = f"from commit {self._reached}" if self._reached else "from the beginning"
        many = "1 rank" if slots_of(hosts) == 1 else f"{slots_of(hosts)} ranks"
        return f"tf_hvd run: restarting with {many}{where}, {commit} (restart {self.number})"


def _ranks_at_first(options: argparse.Namespace) -> int:
    ranks: int = options.np or options.min_np or 1
    return ranks


def _is_here(name: str) -> bool:
    return all_local([Host(name, 1)], socket.gethostname())


def _named(host: str, names: Sequence[str]) -> str:
    """Return the name in `names` of the machine with the host name `host`, or "" if unknown."""
    if not host:
        return ""
    same = [name for name in names if is_same(name, host) or (_is_here(name) and _is_here(host))]
    if not same and any(map(is_address, names)):
        addresses = set()
        with contextlib.suppress(OSError):
            addresses = {str(found[4][0]) for found in socket.getaddrinfo(host, None)}
        same = [name for name in names if name in addresses]
    return same[0] if same else ""


def _reach(options: argparse.Namespace, environ: Mapping[str, str]) -> Reach:
    """Return a function that wraps commands so that they run on another machine, by srun or ssh."""

    @functools.lru_cache(1)
    def way() -> Reach:
        if SLURM_JOB in environ:
            return by_srun
        launcher = find_launcher(options.mpi, environ)
        return by_ssh(ssh_command(launcher.family, environ, ssh_arguments(options)))

    return lambda host, words: way()(host, words)


def drive(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Run an elastic job and return its exit code.

    Raises:
        UsageError: the job cannot be started as requested.
    """
    try:
        commits = Commits(Parts())
        with signals.obeyed(), Home(commits) as home:
            return run.with_lost_output(_drive(options, environ, home, commits), home)
    except signals.Asked as asked:
        say(f"tf_hvd run: the job was ended by {signal.Signals(asked.signum).name}")
        return 128 + asked.signum


def _drive(
    options: argparse.Namespace, environ: Mapping[str, str], home: Home, commits: Commits
) -> int:
    script, ranks = options.host_discovery_script, _ranks_at_first(options)
    discovery = Discovery(script, options.slots_per_host) if script else None
    named = () if discovery else fixed_hosts(options, environ, ranks)
    fixed = named or (() if discovery else (Host("localhost", ranks),))
    python = interpreter.python_of(options.command[0], environ) or sys.executable
    agents = Agents(home.job, commits, _reach(options, environ), _is_here, python)
    # If a rank started this job, the starts cannot know that, because their environment lacks the
    # launcher's variables. They get this machine as their host.
    gives_hosts = bool(discovery or named or is_rank(environ))

    def start(hosts: Sequence[Host], observer: Observer) -> End:
        given = {**vars(options), "np": slots_of(hosts), "hostfile": None}
        if gives_hosts:
            given["hosts"] = ",".join(map(str, hosts))
        options_of_start = argparse.Namespace(**given)
        return run.start_once(options_of_start, without_launcher(environ), home, observer)

    try:
        return Driver(options, agents, commits.parts, start, fixed, discovery).run()
    finally:
        agents.close()
