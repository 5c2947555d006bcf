"""Agents and damaged messages: only the message's link ends."""

import contextlib
import io
import os
import resource
import secrets
import socket
import struct
import subprocess
import sys
import threading

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from tf_hvd.core import contract, messages
from tf_hvd.launch.machine import agent

ROUNDS = int(os.environ.get("TF_HVD_FUZZ_ROUNDS", "100"))  # ./dev prove fuzz runs more
LIMIT = 60  # seconds for steps that take no time
MESSAGES = (
    ({"do": contract.PART, "round": 0, "rank": 1, "commit": 25}, b"weights" * 20),
    ({"do": contract.PARTS, "round": 0}, b""),
    ({"do": contract.FETCH, "round": 0, "rank": 1, "commit": 25}, b""),
    ({"do": contract.FILE, "round": 0, "name": "commit.1.1"}, b""),
    ({"do": contract.FORGET, "round": 0, "after": 3, "last": 17}, b""),
    ({"do": contract.HAVE, "rank": 1, "commit": 25}, b""),
    ({"do": contract.ROUND, "number": 0}, b""),
    ({"do": contract.NOTIFY, "says": 2}, b""),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def bytes_of(message, load=b""):
    file = io.BytesIO()
    messages.send(file, message, load)
    return file.getvalue()


def framed(text, rest=b"\n"):
    """A message with any text as its header."""
    return struct.pack("<I", len(text)) + text + rest


def read_all(data):
    """The exception that ends the reading of data."""
    file = io.BufferedReader(io.BytesIO(data))
    try:
        while True:
            message, load = messages.receive(file)
            assert isinstance(message, dict)
            assert isinstance(load, bytes)
    except (messages.ProtocolError, EOFError) as error:
        return error


@st.composite
def damaged(draw):
    """Messages with changed, missing or additional bytes, or truncated."""
    data = bytearray()
    for one in draw(st.lists(st.sampled_from(MESSAGES), min_size=1, max_size=4)):
        data += bytes_of(*one)
    for _ in range(draw(st.integers(1, 8))):
        at = draw(st.integers(0, len(data) - 1))
        change = draw(st.sampled_from(["put", "take", "add"]))
        some = draw(st.binary(min_size=1, max_size=6) | st.sampled_from([b"9", b"e9", b"-", b"["]))
        if change == "put":
            data[at : at + len(some)] = some
        elif change == "take" and len(data) > len(some):
            del data[at : at + len(some)]
        else:
            data[at:at] = some
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)


@st.composite
def odd(draw):
    """A complete message with a field of a wrong type, or without it."""
    message, load = draw(st.sampled_from(MESSAGES))
    message = dict(message)
    field = draw(st.sampled_from([*message, "do"]))
    if draw(st.booleans()):
        message[field] = draw(JSON)
    else:
        del message[field]
    return bytes_of(message, draw(st.binary(max_size=20)) if draw(st.booleans()) else load)


BYTES = st.binary(max_size=200) | damaged() | odd()
HEADERS = {
    "no object": b"[]",
    "no length": b"{}",
    "an invalid length": b'{"bytes": "x"}',
    "null": b'{"bytes": null}',
    "infinite": b'{"bytes": Infinity}',
    "overflowing": b'{"bytes": 1e999}',
    "no number": b'{"bytes": NaN}',
    "beyond all numbers": b'{"bytes": %d}' % 10**30,
    "beyond all memory": b'{"bytes": %d}' % (1 << 62),
    "beyond this machine's memory": b'{"bytes": %d}' % (1 << 46),
    "large": b'{"bytes": %d}' % (3 << 30),
    "deep": b"[" * (1 << 20),
    "no text": b"\xff\xfe\x00",
}


@pytest.mark.parametrize("name", HEADERS)
def test_invalid_headers(name):
    """Also if less data follow than they announce; no memory of that size is allocated."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert read_all(framed(HEADERS[name], b"a little")) is not None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10  # KiB


def test_too_long_message_is_not_read():
    assert "invalid length of" in str(read_all(struct.pack("<I", (1 << 20) + 1) + b"{}"))
    assert "invalid length of" in str(read_all(b"\xff" * 100))


@settings(max_examples=ROUNDS)
@given(BYTES)
def test_received_data_is_a_message_or_refused(data):
    read_all(data)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda one: one[0]["do"])
def test_truncated_message_is_detected(message):
    whole = bytes_of(*message)
    for size in range(len(whole)):
        assert isinstance(read_all(whole[:size]), EOFError)
    assert isinstance(read_all(whole[:-1] + b"x"), messages.ProtocolError)


class Running:
    """An agent in this process, a simulated `tf_hvd run`, and the links that a test creates."""

    def __init__(self):
        self._above, below = socket.socketpair()
        self.raised = []
        self._job = secrets.token_hex(8)
        self._before, threading.excepthook = threading.excepthook, self._note
        with below:
            away = agent.Away(self._job, below.makefile("wb"), "here")
            away.commits.begin(0)
            self._agent = away.agent
            self._agent.serve()
            self._threads = [
                threading.Thread(target=away.obey, args=(below.makefile("rb"),), daemon=True),
                threading.Thread(target=self._run, daemon=True),
            ]
        for thread in self._threads:
            thread.start()

    def _note(self, what):
        self.raised.append(what.exc_value)

    def _run(self):
        """Simulate `tf_hvd run`: confirm each part."""
        with contextlib.suppress(EOFError), self._above.makefile("rwb") as file:
            while True:
                message, _ = messages.receive(file)
                if message["do"] == contract.PART:
                    messages.send(file, {**message, "do": contract.HAVE})

    @contextlib.contextmanager
    def link(self):
        link = messages.connect(self._job).socket
        link.settimeout(LIMIT)
        with link:
            yield link
        self._agent.settle()

    def end(self):
        """End it; returns the raised exceptions."""
        self._agent.close()
        self._above.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(LIMIT)
        self._above.close()
        threading.excepthook = self._before
        return self.raised


@pytest.fixture(scope="module")
def no_memory_left():
    """Closes memory that agents have created, which they keep until their process ends."""
    yield
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            if contract.COMMIT_MEMORY in os.readlink(f"/proc/self/fd/{number}"):
                os.close(int(number))


def is_served(link):
    """Whether an agent answers a request."""
    with link.makefile("rwb") as file:
        messages.send(file, {"do": contract.PART, "round": 0, "rank": 0, "commit": 9}, b"x")
        has = messages.receive(file)[0]
        messages.send(file, {"do": contract.FETCH, "round": 0, "rank": 0, "commit": 9})
        return has["do"] == contract.HAVE and messages.receive(file)[1] == b"x"


def said_to(link, data):
    """Send data, and read until the other side closes."""
    with contextlib.suppress(ConnectionError):
        link.sendall(data)
        link.shutdown(socket.SHUT_WR)
        while link.recv(1 << 16):
            pass


@settings(max_examples=ROUNDS)
@given(BYTES)
@example(framed(b'{"do": "file", "round": 0, "name": "\\u0000", "bytes": 0}'))
@example(framed(b'{"do": "file", "round": 0, "name": "\\ud800", "bytes": 0}'))
@example(framed(b'{"do": "part", "round": 0, "rank": 1e999, "commit": 1, "bytes": 0}'))
@example(framed(b'{"do": "part", "round": 0, "rank": "one", "commit": 1, "bytes": 0}'))
@example(framed(b'{"do": "fetch", "round": 0, "rank": [], "commit": 1, "bytes": 0}'))
@example(framed(b'{"round": 0, "do": "parts", "bytes": 1e999}'))
def test_damaged_message_ends_only_its_link(no_memory_left, data):
    running = Running()
    with running.link() as other:
        with running.link() as link:
            said_to(link, data)
        assert running.raised == []
        assert is_served(other)
    assert running.end() == []


@settings(max_examples=ROUNDS)
@given(BYTES)
@example(bytes_of({"do": "part", "commit": 1}))
@example(bytes_of({"do": "part", "rank": {}, "commit": 1}))
@example(bytes_of({"do": "round"}))
@example(bytes_of({"do": "notify", "says": 1 << 70}))
@example(framed(b'{"do": "round", "number": 1, "bytes": Infinity}'))
def test_damaged_message_of_tf_hvd_run_ends_the_agent(no_memory_left, data):
    away = agent.Away(secrets.token_hex(8), io.BytesIO())
    away.obey(io.BufferedReader(io.BytesIO(data)))


def test_agent_prints_nothing_about_damaged_messages():
    """Its standard error is that of `tf_hvd run`. Data stored for other ranks are kept."""
    token = secrets.token_hex(8)
    command = [sys.executable, "-I", "-S", agent.__file__, "here", token]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, **pipes) as store:
        agent.find_greeting(store.stdout)
        for text in HEADERS.values():
            with messages.connect(token).socket as link:
                said_to(link, framed(text, b"a little"))
        messages.send(store.stdin, {"do": contract.ROUND, "number": 0})
        messages.send(store.stdin, {"do": contract.READY})
        assert messages.receive(store.stdout)[0]["do"] == contract.READY
        assert messages.receive(store.stdout)[0]["do"] == contract.READY
        link = messages.connect(token)
        link.send({"do": contract.PARTS, "round": 0})
        assert link.receive()[0]["parts"] == []
        link.close()
        store.stdin.close()
        store.stdin = None
        assert store.stdout.read() == b""
        assert store.stderr.read() == b""
        assert store.wait(20) == 0
