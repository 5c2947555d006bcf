"""Agents of other machines: their messages with ranks and with `tf_hvd run`."""

import mmap
import os
import secrets
import signal
import sys

import pytest

from tf_hvd.core import contract, messages
from tf_hvd.elastic import store as elastic_store
from tf_hvd.elastic.store import Store
from tf_hvd.launch.elastic.agents import Agents
from tf_hvd.launch.job import far_agent
from tf_hvd.launch.job.far_agent import FarAgent
from tf_hvd.launch.job.session import Home
from tf_hvd.launch.machine import agent
from tf_hvd.launch.machine.commits import Commits, Parts


@pytest.fixture
def token():
    return secrets.token_hex(8)


@pytest.fixture
def started(token):
    """An agent started through a login that prints a text first, and its parts here."""
    script = f"echo Welcome; exec {sys.executable} -I -S {agent.__file__} here {token}"
    parts = Parts()
    link = FarAgent("here", ["sh", "-c", script], parts)
    assert link.is_ready()
    yield link, parts
    link.close()
    link.process.wait(20)


def begin(link, number):
    """Begins a start, and waits until the agent knows it."""
    link.begin(number)
    link.ask()
    assert link.is_ready()


def test_parts_go_to_the_store_and_to_tf_hvd_run(started, token, wait_until):
    link, parts = started
    parts.put(3, 7, b"of another machine")
    begin(link, 5)
    rank = Store(token, 5)
    assert rank.inventory()[0] == {(3, 7)}
    assert rank.part(3, 7) == b"of another machine"
    assert rank.part(3, 8) is None
    data = os.urandom(1 << 20)
    for commit in (8, 9):
        rank.put(0, commit, data)
    assert rank.part(0, 9) == data
    wait_until(lambda: parts.get(0, 9) == data)
    assert parts.newest(1) == 9
    assert parts.newest(2) == 0  # rank 1 has not written it
    rank.forget(8, 9)
    assert rank.inventory()[0] == {(3, 7), (0, 8)}
    wait_until(lambda: sorted(parts.listed()) == [(0, 8), (3, 7)])


def test_unreachable_old_agent_is_replaced(started, token, wait_until):
    """After a network failure the old agent may keep the socket's name for hours."""
    old, parts = started
    words = [sys.executable, "-I", "-S", agent.__file__]
    other = FarAgent("there", [*words, "there", token], parts)
    assert not other.is_ready()  # the same machine under another name
    assert old.answer()
    new = FarAgent("here", [*words, "here", token], parts)
    assert new.is_ready()
    wait_until(lambda: old.ended)
    begin(new, 0)
    assert Store(token, 0).inventory()[0] == frozenset()
    new.close()


def test_files_outlive_their_writers(started, token):
    link, _ = started
    begin(link, 0)
    first = Store(token, 0)
    file = first.file("commit.0.1")
    os.ftruncate(file, 4096)
    with mmap.mmap(file, 0) as memory:
        memory[:5] = b"hello"
    first._link.close()
    again = Store(token, 0)
    assert os.pread(again.file("commit.0.1"), 5, 0) == b"hello"
    assert "commit.0.1" in again.inventory()[1]


def test_rank_of_another_start_is_rejected(started, token, monkeypatch):
    link, _ = started
    begin(link, 2)
    late = Store(token, 1)
    monkeypatch.setattr(elastic_store, "_AGAIN", 0.0)
    with pytest.raises((EOFError, OSError)):
        late.inventory()
    assert Store(token, 2).inventory()[0] == frozenset()


def test_notices(started, token, wait_until):
    link, _ = started
    begin(link, 0)
    rank = Store(token, 0)
    assert rank.notice() == 0
    link.notify(contract.ADDED)
    wait_until(lambda: rank.notice() == contract.ADDED)


def test_early_notice_is_received(started, token, wait_until):
    """Hosts added while a start began were not used. Notices to the previous start are reset."""
    link, _ = started
    begin(link, 0)
    link.notify(contract.ADDED)
    wait_until(lambda: Store(token, 0).notice())
    begin(link, 1)
    assert Store(token, 1).notice() == 0
    link.notify(contract.REMOVED)
    wait_until(lambda: Store(token, 1).notice() == contract.REMOVED)


def test_agent_ends_with_tf_hvd_run(started, token, wait_until):
    link, _ = started
    link.close()
    assert link.process.wait(20) == 0
    wait_until(lambda: link.ended)
    with pytest.raises(ConnectionRefusedError):
        Store(token, 0)


def test_agent_that_cannot_be_started():
    assert not FarAgent(
        "gone", ["sh", "-c", "echo No such machine >&2; exit 255"], Parts()
    ).is_ready()


@pytest.fixture
def commits():
    return Commits(Parts())


@pytest.fixture
def home(commits):
    with Home(commits) as made:
        yield made


@pytest.fixture
def agents(home, commits):
    """The agents of hosts that are all this machine, with a separate job name each."""

    def reach(host, words):
        commands = {"slow": ["sleep", "600"], "gone": ["false"]}
        return commands.get(host, [*words[:-1], f"{home.job}.{host}"])

    made = Agents(home.job, commits, reach, lambda name: False, sys.executable)
    yield made
    made.close()
    for process in made.processes():
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def test_agent_of_a_dropped_host_ends(agents, home, wait_until, commits):
    """A withdrawn machine must not keep data. The job's progress is still known."""
    assert agents.start(["a", "b"]) == []
    agents.begin(["a", "b"], 0)
    assert agents.start(["a", "b"]) == []  # they know the start
    Store(f"{home.job}.b", 0).put(0, 7, b"")
    assert commits.parts.newest(1) == 7
    agents.keep(["a"])
    wait_until(lambda: not listens(f"{home.job}.b"))
    assert listens(f"{home.job}.a")
    assert commits.parts.newest(1) == 7
    assert len(agents.processes()) == 1
    assert agents.start(["a", "b"]) == []


def listens(token):
    try:
        messages.connect(token).close()
    except ConnectionRefusedError:
        return False
    return True


def test_agents_are_started_without_waiting(agents, wait_until):
    assert agents.look_for(["a", "slow"])["slow"] is None
    wait_until(lambda: agents.look_for(["a", "slow"]) == {"a": True, "slow": None})
    agents.look_for(["gone"])
    wait_until(lambda: agents.lost(["gone"]))
    assert agents.start(["a"]) == []


def test_ranks_data_survive_their_agent(agents, home, wait_until, monkeypatch):
    """When an agent ended, all commits were lost."""
    monkeypatch.setattr(far_agent, "_AGAIN", 0.0)
    assert agents.start(["a"]) == []
    agents.begin(["a"], 3)
    agents.notify(contract.ADDED)
    assert agents.start(["a"]) == []
    rank = Store(f"{home.job}.a", 3)
    rank.put(0, 7, b"of commit 7")
    memory = rank.file("commit.0.0")
    os.pwrite(memory, b"hello", 0)
    (process,) = agents.processes()
    os.kill(process, signal.SIGKILL)
    wait_until(lambda: agents.lost(["a"]))
    agents.revive(["a"])
    assert agents.lost(["a"]) == ["a"]  # until it answers

    def lives():
        agents.revive(["a"])
        return not agents.lost(["a"])

    wait_until(lives)
    rank.put(0, 8, b"of commit 8")  # waits until an agent runs
    assert os.pread(Store(f"{home.job}.a", 3).file("commit.0.0"), 5, 0) == b"hello"
    assert rank.inventory()[0] == {(0, 7), (0, 8)}
    wait_until(lambda: rank.notice() == contract.ADDED)
