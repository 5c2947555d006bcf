"""The hosts that an elastic job may use."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tf_hvd.launch.elastic.hosts import STRIKES, Hosts, delay, parse_discovered
from tf_hvd.launch.errors import UsageError
from tf_hvd.launch.job.hosts import Host

A, B, C = Host("a", 2), Host("b", 2), Host("c", 1)


def test_known_hosts_keep_their_order():
    hosts = Hosts(None)
    hosts.found([B, A])
    hosts.found([C, Host("a", 4), B])
    assert hosts.usable(0.0) == (B, Host("a", 4), C)
    hosts.found([A])
    assert hosts.usable(0.0) == (A,)


def test_host_is_excluded_after_consecutive_failures():
    hosts = Hosts(None)
    hosts.found([A, B])
    for _ in range(STRIKES - 1):
        assert not hosts.failed("a", 0.0)
    hosts.commit_made()
    for _ in range(STRIKES - 1):
        assert not hosts.failed("a", 0.0)
    assert hosts.failed("a", 0.0)
    assert hosts.usable(1e9) == (B,)


def test_excluded_host_returns_after_cooldown():
    hosts = Hosts((10, 30))
    hosts.found([A, B])
    assert hosts.failed("a", 100.0)
    assert hosts.usable(105.0) == (B,)
    assert hosts.usable(120.1) == (A, B)


def test_unreachable_host_is_retried_at_growing_intervals():
    hosts = Hosts(None)
    hosts.found([A, B])
    delays = [hosts.lost("b", 0.0) for _ in range(9)]
    assert 30 <= delays[0] <= 60 <= delays[1] <= 90
    assert delays == sorted(delays)
    assert delays[-1] == 600
    assert hosts.usable(599.0) == (A,)
    assert hosts.usable(600.0) == (A, B)
    hosts.reached(["b"])
    assert hosts.lost("b", 0.0) <= 60
    assert not hosts.failed("b", 1000.0), "it is available again"


def test_withdrawn_host_returns_as_a_new_host():
    hosts = Hosts(None)
    hosts.found([A, B])
    for _ in range(STRIKES):
        hosts.failed("b", 0.0)
    hosts.unfit("a", 0.0)
    assert hosts.usable(0.0) == ()
    hosts.found([])
    hosts.lost("b", 0.0)  # recorded only now
    hosts.found([B, A])
    assert hosts.names() == ["b", "a"]
    assert hosts.usable(0.0) == (B, A)
    assert not hosts.failed("b", 0.0)


@given(st.integers(0, 100), st.floats(0, 1), st.integers(1, 3600), st.integers(0, 3600))
def test_a_delay_is_horovods(failures, chance, low, more):
    """low * 2 ** failures + chance * low, within the range."""
    high = min(3600, low + more)
    seconds = delay((low, high), failures, chance)
    assert low <= seconds <= high
    assert seconds == min(low * 2.0**failures + chance * low, high)


def test_script_output_is_parsed():
    assert parse_discovered("b:2\n\n a \nb:2\n", 3) == (B, Host("a", 3))
    assert parse_discovered("", None) == ()
    for text, message in (("a\n", "has no slots"), ("a:0\n", "must be a positive integer")):
        with pytest.raises(UsageError, match=message):
            parse_discovered(text, None)
