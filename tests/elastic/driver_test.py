"""The reactions of `tf_hvd run --min-np` to ends of its starts and to changes of hosts."""

import argparse
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
import types

import psutil
import pytest

from tf_hvd.core import contract
from tf_hvd.launch.elastic import discovery as elastic_discovery
from tf_hvd.launch.elastic.driver import Driver
from tf_hvd.launch.elastic.hosts import parse_discovered
from tf_hvd.launch.errors import HostsError, UsageError
from tf_hvd.launch.job import signals
from tf_hvd.launch.job.hosts import Host
from tf_hvd.launch.job.run import End
from tf_hvd.launch.machine.proc import is_alive

A, B, C = Host("a", 1), Host("b", 1), Host("c", 1)
AGAIN = contract.START_AGAIN


class Agents:
    """Agents that all answer, unless `answers` says otherwise."""

    def __init__(self):
        self.answers = {}  # by host; None for no answer yet
        self.kept, self.said = [], []

    def start(self, names):
        return [name for name in names if not self.answers.get(name, True)]

    def look_for(self, names):
        return {name: self.answers.get(name, True) for name in names}

    def revive(self, names):
        pass

    def keep(self, names):
        self.kept.append(set(names))

    def begin(self, names, number):
        pass

    def notify(self, says):
        self.said.append(says)

    def processes(self):
        return set()

    def lost(self, names):
        return [name for name in names if self.answers.get(name) is False]


class Job:
    """A job on given hosts, or on those in `found`, which a test may change.

    Each start is a function of the hosts' names and the watch, and returns its `End`.
    """

    def __init__(self, *starts, given=(), found=None, np=None, **options):
        defaults = {"max_np": None, "cooldown": None, "reset_limit": None, "elastic_timeout": 0.0}
        options = argparse.Namespace(**{**defaults, "np": np, "min_np": 1, **options})
        self.agents, self.begun, self.commit = Agents(), [], 0
        parts = types.SimpleNamespace(newest=lambda ranks: self.commit)
        self._starts = iter(starts)
        discovery = None
        if found is not None:
            discovery = self.discovery = types.SimpleNamespace(
                found=lambda: tuple(found), look=lambda: None, scripts=set()
            )
        self.driver = Driver(options, self.agents, parts, self._start, given, discovery)

    def _start(self, hosts, watch):
        names = "".join(host.name for host in hosts)
        self.begun.append((watch.number, names))
        return next(self._starts)(names, watch)

    def run(self):
        return self.driver.run()


def ends(*arguments, **named):
    return lambda names, watch: End(*arguments, **named)


GOOD, LEFT = ends(0), ends(AGAIN)


def unfit(*wrong):
    def start(names, watch):
        raise HostsError(wrong)

    return start


UNFIT = unfit(("b", "host b: it has no tf_hvd"), ("b", "host b: it has MPI 1"))


def test_unfit_discovered_host_is_excluded(capsys):
    job = Job(UNFIT, GOOD, found=[A, B], np=2)
    assert job.run() == 0
    assert job.begun == [(0, "ab"), (0, "a")]
    assert "host b: it has no tf_hvd; it is excluded for 600 s\n" in capsys.readouterr()[1]


def test_unfit_given_host_is_excluded_at_a_restart():
    job = Job(ends(1), UNFIT, GOOD, given=(A, B), np=2)
    assert job.run() == 0
    assert job.begun == [(0, "ab"), (1, "ab"), (1, "a")]


@pytest.mark.parametrize(
    ("wrong", "hosts"),
    [
        (["b"], {"given": (A, B)}),
        (["a", "b"], {"found": [A, B]}),
        (["localhost"], {"found": [Host("localhost", 1), B]}),
    ],
    ids=["given", "all", "this_machine"],
)
def test_unfit_host_is_an_error_at_the_first_start(wrong, hosts):
    job = Job(unfit(*((name, f"{name} lacks it") for name in wrong)), np=2, **hosts)
    with pytest.raises(UsageError, match=f"^{wrong[0]} lacks it"):
        job.run()


def test_unreachable_host_is_an_error_at_the_first_start():
    job = Job(given=(A, B), np=2)
    job.agents.answers["b"] = False
    with pytest.raises(UsageError, match="host b cannot be reached"):
        job.run()


@pytest.mark.parametrize(
    ("commits", "folder", "told"), [(3, "", True), (0, "", False), (3, "/commits", False)]
)
def test_lost_commits_are_reported(commits, folder, told, capsys, monkeypatch):
    monkeypatch.setenv("TF_HVD_COMMIT_DIR", folder)
    job = Job(ends(143, asked=True), given=(A, B))
    job.commit = commits
    assert job.run() == 143
    assert ("TF_HVD_COMMIT_DIR" in capsys.readouterr()[1]) == told


def test_restart_codes_without_a_notice_are_failures(capsys):
    """Under srun, a raising rank's code is lower than that of ranks that end because of it."""
    job = Job(LEFT, LEFT, LEFT, given=(A, B))
    assert job.run() == 1
    assert len(job.begun) == 3
    assert "3 starts in a row ended before all ranks had made a commit" in capsys.readouterr()[1]


def test_restart_codes_for_new_hosts_are_not_failures():
    there = [A]

    def comes(names, watch):
        there[:] = [A] if B in there else [A, B]
        watch.look()
        return End(AGAIN)

    job = Job(comes, comes, comes, comes, comes, GOOD, found=there)
    assert job.run() == 0
    added, removed = contract.ADDED, contract.REMOVED
    assert job.agents.said == [added, removed, added, removed, added]


def test_new_hosts_do_not_hide_failures():
    there = [A]

    def comes(names, watch):
        there[:] = [A] if B in there else [A, B]
        watch.look()
        return End(AGAIN)

    job = Job(LEFT, comes, LEFT, comes, LEFT, found=there)
    assert job.run() == 1
    assert len(job.begun) == 5


def test_commit_resets_the_failure_count():
    def commits(names, watch):
        job.commit += 1
        return End(AGAIN)

    job = Job(LEFT, LEFT, commits, LEFT, LEFT, GOOD, given=(A,))
    assert job.run() == 0


@pytest.mark.parametrize(
    ("names", "told", "left"),
    [
        ("a b", "b", "a"),
        ("a b", "b.x.org", "a"),
        ("a.x.org b.x.org", "b", "a.x.org"),
        ("a.x.org a.y.org", "a.y.org", "a.x.org"),
        ("a localhost", socket.gethostname(), "a"),
        ("10.0.0.1 10.0.0.2", "b", "10.0.0.1"),
    ],
)
def test_failed_host_is_found_by_its_own_name(names, told, left, monkeypatch):
    def addresses(host, port):
        return [(0, 0, 0, "", ("10.0.0.2", 0))] if host == "b" else []

    monkeypatch.setattr(socket, "getaddrinfo", addresses)
    given = tuple(Host(name, 1) for name in names.split())
    job = Job(ends(1, host=told), GOOD, given=given, cooldown=(100, 200))
    assert job.run() == 0
    assert [begun for _, begun in job.begun] == ["".join(names.split()), left]


def test_ranks_do_not_end_for_unreachable_hosts(capsys):
    there = [A]

    def comes(names, watch):
        there.append(B)
        for answer in (None, False):
            job.agents.answers["b"] = answer
            watch.look()
        there[:] = [A]
        watch.look()
        there.append(B)
        job.agents.answers["b"] = None
        watch.look()
        assert job.agents.said == []
        job.agents.answers["b"] = True
        watch.look()
        assert job.agents.said == [contract.ADDED]
        return End(AGAIN)

    job = Job(comes, GOOD, found=there)
    assert job.run() == 0
    assert job.begun == [(0, "a"), (1, "ab")]
    assert "b cannot be reached and is excluded for" in capsys.readouterr()[1]


def test_agent_of_a_withdrawn_host_is_ended():
    """The agent of a temporarily excluded host is kept, because the host returns."""
    there = [A, B, C]

    def goes(names, watch):
        there.remove(B)
        watch.look()
        return End(1, host="c")

    job = Job(goes, GOOD, found=there, cooldown=(100, 200))
    assert job.run() == 0
    assert [begun for _, begun in job.begun] == ["abc", "a"]
    assert job.agents.kept == [{"a", "b", "c"}, {"a", "c"}]


def test_end_of_a_start_spares_the_discovery_script():
    """The script was killed and reported as failed."""
    with contextlib.ExitStack() as stack:
        script = subprocess.Popen(["sh", "-c", "sleep 60 & wait"])
        other = subprocess.Popen(["sleep", "60"])
        for each in (script, other):
            stack.callback(each.wait)
            stack.callback(each.kill)
        while not (below := psutil.Process(script.pid).children()):
            time.sleep(0.01)
        stack.callback(below[0].kill)
        fates = []

        def start(_names, watch):
            fates.extend(watch.spares(each) for each in (script.pid, below[0].pid, other.pid))
            return End(0)

        job = Job(start, found=[A])
        job.discovery.scripts.add(script.pid)
        assert job.run() == 0
    assert fates == [True, True, False]


def test_hanging_script_is_ended_with_its_children(tmp_path, monkeypatch):
    """Only its shell was ended."""
    script = tmp_path / "discover"
    script.write_text(f"#!/bin/sh\nsleep 60 & echo $! > {tmp_path}/sleeps; wait\n")
    script.chmod(0o755)
    monkeypatch.setattr(elastic_discovery, "_SCRIPT", 1.0)
    with pytest.raises(UsageError, match="did not end within 1 s"):
        elastic_discovery.Discovery(str(script), None)
    assert not is_alive(int((tmp_path / "sleeps").read_text()))


@pytest.mark.parametrize(
    ("prints", "told"),
    [
        (r"printf 'a:1\n\377\376\n'", r"bytes that are not UTF-8, in line 2: b'\xff\xfe"),
        ("yes", "was ended because it printed more than 64 KiB"),
    ],
)
def test_invalid_script_output_is_reported(tmp_path, prints, told):
    """One gave "No such process", the other took all of the machine's memory."""
    script = tmp_path / "discover"
    script.write_text(f"#!/bin/sh\n{prints}\n")
    script.chmod(0o755)
    with pytest.raises(UsageError, match=re.escape(told)):
        elastic_discovery.Discovery(str(script), None)


def test_signal_to_end_is_obeyed_once_and_signals_for_ranks_are_ignored():
    before = {each: signal.getsignal(each) for each in (*signals.ENDING, signal.SIGUSR1)}
    try:
        with signals.obeyed():
            os.kill(os.getpid(), signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGUSR2)
        assert {each: signal.getsignal(each) for each in before} == before
        with pytest.raises(signals.Asked, match=str(int(signal.SIGTERM))):
            be_asked_twice()
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def be_asked_twice():
    with signals.obeyed():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGHUP)


def heed():
    """Undo ignored signals, as under nohup or in a shell's background processes."""
    for signum in (signal.SIGHUP, signal.SIGINT):
        signal.signal(signum, signal.SIG_DFL)


@pytest.fixture
def started(tmp_path, mpi_library):
    """Starts an elastic job, given lines of hosts and a program's text; returns the process."""
    (tmp_path / "tmp").mkdir()
    running = []

    def start(hosts, text, *options):
        script, program = tmp_path / "discover", tmp_path / "program.py"
        script.write_text(f"#!/bin/sh\nprintf '{hosts}'\n")
        script.chmod(0o755)
        program.write_text(text)
        command = [sys.executable, "-P", "-m", "tf_hvd_command", "run", *options]
        command += ["--host-discovery-script", str(script), sys.executable, str(program)]
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            env={
                **os.environ,
                "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
                "TMPDIR": str(tmp_path / "tmp"),
                "TF_HVD_MPI_LIBRARY": str(mpi_library("openmpi")),
            },
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=heed,
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_job_waiting_for_hosts_ends_cleanly(started, tmp_path, signum):
    job = started("localhost:1\\n", "", "--min-np", "2")
    assert "waiting for hosts: 1 of 2 slots are available" in job.stderr.readline()
    assert [path.name[:15] for path in (tmp_path / "tmp").iterdir()] == []
    job.send_signal(signal.SIGUSR1)
    job.send_signal(signal.SIGUSR2)
    job.send_signal(signum)
    assert job.wait(60) == 128 + signum
    assert f"the job was ended by {signum.name}" in job.stderr.read()
    assert not [*(tmp_path / "tmp").iterdir()]


def test_hanging_discovery_script_ends_with_the_job(started, wait_until):
    """The script and its children were left running."""
    job = started("'; exec sleep 1000 #", "", "--min-np", "2")

    def asked():
        below = psutil.Process(job.pid).children(recursive=True)
        return [each for each in below if each.name() == "sleep"]

    wait_until(asked, 60)
    (script,) = asked()
    job.send_signal(signal.SIGTERM)
    assert job.wait(60) == 128 + signal.SIGTERM
    wait_until(lambda: not script.is_running(), 60)


def test_fixed_hosts_with_too_few_slots():
    """The job waited for hosts that could not come."""
    options = argparse.Namespace(hosts="localhost:1", hostfile=None)
    with pytest.raises(UsageError, match=r"-np 2 is more than the 1 slot of localhost:1; ask"):
        elastic_discovery.fixed_hosts(options, {}, 2)


@pytest.mark.parametrize("line", ["hello world this is: nonsense", "localhost:two"])
def test_errors_name_the_discovery_script(line):
    """The error named `-H`, although it was not given."""
    with pytest.raises(UsageError, match=r"^--host-discovery-script: .*(is not|must be) "):
        parse_discovered(line, None)


SAVES = """
import pathlib, signal, sys, time

def save(*_):
    time.sleep(1)
    pathlib.Path("saved").touch()
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
pathlib.Path("ready").touch()
time.sleep(600)
"""


def test_running_start_gives_ranks_the_grace_period(started, tmp_path, wait_until):
    """While a start runs, the start handles the signal."""
    job = started("localhost:1\\n", SAVES, "--min-np", "1")
    wait_until((tmp_path / "ready").exists, 60)
    job.send_signal(signal.SIGTERM)
    assert job.wait(60) == 128 + signal.SIGTERM
    assert (tmp_path / "saved").exists()
    assert not [*(tmp_path / "tmp").iterdir()]


# "Other machines" are this one, so agents need other names. The host check reports a fault.
SSH = """#!/bin/sh
case "$*" in
*agent.py*) for last; do :; done; exec /bin/sh -c "$last.other" ;;
*) echo 'tf_hvd found {"wrong": "no tf_hvd there"}' ;;
esac
"""


def test_host_with_a_fault_is_excluded(started, tmp_path):
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    job = started("localhost:1\\nother:1\\n", "import os; os.write(2, b'runs\\n')", "--min-np", "1")
    _, errors = job.communicate(timeout=120)
    assert job.returncode == 0, errors
    said = "tf_hvd run: host other: no tf_hvd there; it is excluded for 600 s\n"
    assert errors.count(said) == errors.count("runs\n") == 1, errors
