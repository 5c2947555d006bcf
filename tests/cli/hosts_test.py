"""Host lists and host files, by table."""

import pytest

from tf_hvd.launch.errors import UsageError
from tf_hvd.launch.job.hosts import (
    Host,
    all_local,
    check_slots,
    is_same,
    parse_hostfile,
    parse_hosts,
    placed,
)

AB = (Host("a", 1), Host("b", 4))


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a:1", (Host("a", 1),)),
        ("a:1,b:4", AB),
        (" a:1 , b:4 ", AB),
        ("gpu-7.cluster_2.example:16", (Host("gpu-7.cluster_2.example", 16),)),
        ("10.0.0.3:2", (Host("10.0.0.3", 2),)),
        ("localhost:02", (Host("localhost", 2),)),
    ],
)
def test_hosts(text, hosts):
    assert parse_hosts(text) == hosts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "-H: '' is not name:slots; a host list looks like node1:4,node2:4"),
        ("a:1,", "-H: '' is not name:slots; a host list looks like node1:4,node2:4"),
        (":2", "-H: ':2' is not name:slots; a host list looks like node1:4,node2:4"),
        ("-x:2", "-H: '-x:2' is not name:slots; a host list looks like node1:4,node2:4"),
        ("a b:2", "-H: 'a b:2' is not name:slots; a host list looks like node1:4,node2:4"),
        ("a;ls:2", "-H: 'a;ls:2' is not name:slots; a host list looks like node1:4,node2:4"),
        ("a", "-H: 'a' has no slots; write a:1 for one rank on that host"),
        ("a:", "-H: the number of slots in 'a:' must be a positive integer, for example a:1"),
        ("a:0", "-H: the number of slots in 'a:0' must be a positive integer, for example a:1"),
        ("a:-1", "-H: the number of slots in 'a:-1' must be a positive integer, for example a:1"),
        ("a:two", "-H: the number of slots in 'a:two' must be a positive integer, for example a:1"),
        ("a:²", "-H: the number of slots in 'a:²' must be a positive integer, for example a:1"),
        (
            "fe80::1:2",
            "-H: 'fe80::1:2' is not name:slots; for an IPv6 address write a host name instead",
        ),
        (
            "[::1]:2",
            "-H: '[::1]:2' is not name:slots; for an IPv6 address write a host name instead",
        ),
        ("a:1,b:1,a:2", "host a is listed twice; write it once, as a:3"),
    ],
)
def test_invalid_host_lists(text, message):
    with pytest.raises(UsageError) as raised:
        parse_hosts(text)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    "text",
    [
        "a slots=1\nb slots=4\n",
        "a:1\nb:4",
        "# the cluster\n\na  slots = 1  # the old one\n\tb:4\n",
        "a slots=1\r\nb slots=4\r\n",
    ],
)
def test_hostfile(text):
    assert parse_hostfile(text, "hosts") == AB


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "hosts contains no hosts; write one `name slots=N` per line"),
        ("# nothing\n\n", "hosts contains no hosts; write one `name slots=N` per line"),
        ("a:1\nb\n", "hosts, line 2: 'b' has no slots; write b:1 for one rank on that host"),
        (
            "a slots=x",
            "hosts, line 1: the number of slots in 'a:x' must be a positive integer, "
            "for example a:1",
        ),
        (
            "a max-slots=4",
            "hosts, line 1: 'a max-slots=4' is not name:slots; "
            "a host list looks like node1:4,node2:4",
        ),
        ("a:1\na slots=1", "host a is listed twice; write it once, as a:2"),
    ],
)
def test_invalid_hostfiles(text, message):
    with pytest.raises(UsageError) as raised:
        parse_hostfile(text, "hosts")
    assert str(raised.value) == message


def test_slots_must_suffice():
    check_slots(AB, 5, "")
    with pytest.raises(UsageError) as raised:
        check_slots(AB, 6, "ask for fewer")
    assert str(raised.value) == "-np 6 is more than the 5 slots of a:1,b:4; ask for fewer"


def test_hosts_that_get_ranks():
    hosts = parse_hosts("a:2,b:1,c:4")
    assert [",".join(map(str, placed(hosts, n))) for n in (1, 2, 3, 4)] == [
        *("a:1", "a:2", "a:2,b:1", "a:2,b:1,c:1"),
    ]
    assert placed((), 3) == ()


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("localhost:2", True),
        ("127.0.0.1:1", True),
        ("here:1", True),
        ("here.example:1,localhost:1", True),
        ("there:1", False),
        ("localhost:1,there.example:1", False),
    ],
)
def test_local_hosts(text, local):
    assert all_local(parse_hosts(text), "here.example") is local


@pytest.mark.parametrize(
    ("name", "other", "same"),
    [
        ("a", "a", True),
        ("a", "A.example", True),
        ("a.example", "a", True),
        ("a.example", "a.other", False),
        ("a", "b.a", False),
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("10.0.0.1", "10", False),
    ],
)
def test_names_of_the_same_machine(name, other, same):
    assert is_same(name, other) is same
