"""Commit stores: what ranks, and `tf_hvd run`, put into them and get."""

import mmap
import os
import secrets
import signal
import sys

import pytest

from tf_hvd.core import commit_store
from tf_hvd.elastic.store import Store
from tf_hvd.launch.elastic_stores import Link, Stores


@pytest.fixture
def token():
    return secrets.token_hex(8)


@pytest.fixture
def started(token):
    """A store that a login has started, which prints something before; and its parts here."""
    script = f"echo Welcome; exec {sys.executable} -I -S {commit_store.__file__} here {token}"
    parts = commit_store.Parts()
    link = Link(["sh", "-c", script], parts)
    assert link.is_ready()
    yield link, parts
    link.close()
    link.process.wait(20)


def begin(link, number):
    """Begins a start, and waits until the store has heard of it."""
    link.begin(number)
    link.ask()
    assert link.is_ready()


def test_parts_go_to_the_store_and_to_tf_hvd_run(started, token, wait_until):
    link, parts = started
    parts.put(3, 7, b"of another machine")
    begin(link, 5)
    rank = Store(token, 5)
    assert rank.inventory().parts == {(3, 7)}
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
    assert rank.inventory().parts == {(3, 7), (0, 8)}
    wait_until(lambda: sorted(parts.listed()) == [(0, 8), (3, 7)])


def test_a_store_that_nobody_can_reach_any_more_makes_room(started, token, wait_until):
    """After a cut of the network the old one holds the name, perhaps for hours."""
    old, parts = started
    words = [sys.executable, "-I", "-S", commit_store.__file__]
    other = Link([*words, "there", token], parts)
    assert not other.is_ready()  # the same machine under another name
    assert old.answer()
    new = Link([*words, "here", token], parts)
    assert new.is_ready()
    wait_until(lambda: old.ended)
    begin(new, 0)
    assert Store(token, 0).inventory().parts == frozenset()
    new.close()


def test_files_outlive_who_wrote_them(started, token):
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
    assert "commit.0.1" in again.inventory().files


def test_a_rank_of_another_start_is_not_heard(started, token):
    link, _ = started
    begin(link, 2)
    late = Store(token, 1)
    with pytest.raises((EOFError, OSError)):
        late.inventory()
    assert Store(token, 2).inventory().parts == frozenset()


def test_notices(started, token, wait_until):
    link, _ = started
    begin(link, 0)
    rank = Store(token, 0)
    assert rank.notice() == (0, 0)
    link.notify(1, commit_store.ADDED)
    wait_until(lambda: rank.notice() == (1, commit_store.ADDED))


def test_what_is_noticed_before_a_rank_is_there_is_heard(started, token, wait_until):
    """Hosts that came while a start began were not used; what the start before was told is done."""
    link, _ = started
    begin(link, 0)
    link.notify(1, commit_store.ADDED)
    wait_until(lambda: Store(token, 0).notice()[1])
    begin(link, 1)
    assert Store(token, 1).notice() == (0, 0)
    link.notify(2, commit_store.REMOVED)
    wait_until(lambda: Store(token, 1).notice() == (2, commit_store.REMOVED))


def test_it_ends_with_tf_hvd_run(started, token, wait_until):
    link, _ = started
    link.close()
    assert link.process.wait(20) == 0
    wait_until(lambda: link.ended)
    with pytest.raises(ConnectionRefusedError):
        Store(token, 0)


def test_one_that_cannot_be_started():
    assert not Link(
        ["sh", "-c", "echo No such machine >&2; exit 255"], commit_store.Parts()
    ).is_ready()


@pytest.fixture
def stores(token):
    """Those of hosts that are all this machine, where each has a token of its own."""

    def reach(host, words):
        commands = {"slow": ["sleep", "600"], "gone": ["false"]}
        return commands.get(host, [*words[:-1], f"{token}.{host}"])

    made = Stores(token, reach, lambda name: False, sys.executable)
    yield made
    made.close()
    for process in made.processes():
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def test_the_store_of_a_host_that_is_not_kept_ends(stores, token, wait_until):
    """A machine that was taken back is not to hold copies. But how far the job was stays known."""
    assert stores.start(["a", "b"]) == []
    stores.begin(["a", "b"], 0)
    assert stores.start(["a", "b"]) == []  # they have heard of it
    Store(f"{token}.b", 0).put(0, 7, b"")
    assert stores.newest(1) == 7
    stores.keep(["a"])
    wait_until(lambda: not listens(f"{token}.b"))
    assert listens(f"{token}.a")
    assert stores.newest(1) == 7
    assert len(stores.processes()) == 1
    assert stores.start(["a", "b"]) == []


def listens(token):
    try:
        commit_store.connect(token).close()
    except ConnectionRefusedError:
        return False
    return True


def test_one_may_be_looked_for_without_waiting(stores, wait_until):
    assert stores.look_for(["a", "slow"])["slow"] is None
    wait_until(lambda: stores.look_for(["a", "slow"]) == {"a": True, "slow": None})
    stores.look_for(["gone"])
    wait_until(lambda: stores.lost(["gone"]))
    assert stores.start(["a"]) == []
