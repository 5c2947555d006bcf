"""Simulates several machines, each with its own network, host name, processes, clock and sshd.

A node is a tree of processes in separate namespaces, with its own /dev/shm. Pairs of veth devices
connect the nodes to a bridge in another namespace, so this machine's network is not changed.

It needs root and the tools that `why_not` checks. Usage::

    python tests/nodes/cluster.py --nodes alpha,beta --rate 1gbit -- COMMAND
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence

HERE = pathlib.Path(__file__).resolve().parent
TOOLS = ("unshare", "nsenter", "ip", "tc", "mount", "ssh", "ssh-keygen")
SSHD = "/usr/sbin/sshd"
START_LIMIT = 200
CLOCKS_APART = 3600
"""Seconds between the clocks of two consecutive nodes."""


def why_not() -> str:
    """Why this machine cannot have nodes; empty if it can."""
    if os.geteuid() != 0:
        return "only root can create namespaces"
    missing = [tool for tool in TOOLS if not shutil.which(tool)]
    missing += [SSHD] if not os.access(SSHD, os.X_OK) else []
    if missing:
        return f"missing: {', '.join(missing)}"
    namespaces = ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--time", "--fork"]
    probe = "ip link add probe type veth peer name other && mount -t proc proc /proc"
    tried = subprocess.run([*namespaces, "sh", "-c", probe], capture_output=True, text=True)
    return tried.stderr.strip() if tried.returncode else ""


def _run(*command: str | os.PathLike[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


@dataclasses.dataclass(frozen=True)
class Node:
    """One machine of a cluster."""

    name: str
    address: str
    init: int
    """The process id, in this machine's namespace, of the node's first process."""
    switch: int
    """The id of the process that holds the bridge's namespace."""

    def command(self, command: Sequence[str]) -> list[str]:
        """The command line that runs `command` in this node, in the current folder."""
        namespaces = ["-t", str(self.init), "-m", "-u", "-i", "-n", "-p", "-T"]
        return ["nsenter", *namespaces, "--", "env", "-C", os.getcwd(), *command]

    def sent_bytes(self) -> int:
        """The bytes sent over its cable since it was plugged in."""
        lines = subprocess.check_output(self.command(["cat", "/proc/net/dev"]), text=True)
        return int(lines.split("eth0:")[1].split()[8])

    def lose(self) -> None:
        """Kill all of its processes at once, as in a power failure."""
        os.kill(self.init, signal.SIGKILL)

    def unplug(self) -> None:
        """Stop all traffic on its cable."""
        _run(*_in_network(self.switch), "ip", "link", "set", self.port, "down")

    @property
    def port(self) -> str:
        """The name of its cable's end at the bridge, at most 15 characters."""
        return f"to-{self.address}"


def _in_network(process: int) -> list[str]:
    return ["nsenter", "-t", str(process), "-n", "--"]


def _children(process: int) -> list[int]:
    text = pathlib.Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(word) for word in text.split()]


def wait_until(done: Callable[[], object], what: str) -> None:
    """Wait until something has started; `what` names it in the error after the time limit."""
    deadline = time.monotonic() + START_LIMIT
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come up within {START_LIMIT} s")
        time.sleep(0.02)


def _write_keys(folder: pathlib.Path, addresses: dict[str, str]) -> None:
    """Write one key for all users and one for all hosts, valid only for this cluster."""
    for key in ("key", "host_key"):
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", key, "-f", folder / key)
    hosts = [f"{address} {name}" for name, address in addresses.items()]
    (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *hosts, ""]))
    public = (folder / "host_key.pub").read_text()
    known = [f"{name},{address} {public}" for name, address in addresses.items()]
    (folder / "known_hosts").write_text("".join(known))


def _address(place: int) -> str:
    return f"10.77.0.{place}"


def _start_switch(ends: contextlib.ExitStack) -> int:
    switch = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
    ends.callback(switch.wait)
    ends.callback(switch.kill)
    ours = os.readlink("/proc/self/ns/net")
    wait_until(lambda: os.readlink(f"/proc/{switch.pid}/ns/net") != ours, "the bridge")
    within = _in_network(switch.pid)
    _run(*within, "ip", "link", "add", "bridge", "type", "bridge")
    _run(*within, "ip", "link", "set", "bridge", "up")
    return switch.pid


def _start_node(
    ends: contextlib.ExitStack, name: str, place: int, switch: int, folder: pathlib.Path
) -> Node:
    namespaces = ["--net", "--uts", "--ipc", "--mount", "--propagation", "private", "--pid"]
    # Its clock differs, as on machines that were started at different times.
    namespaces += ["--time", "--monotonic", str(place * CLOCKS_APART)]
    address = _address(place)
    process = subprocess.Popen(
        ["unshare", *namespaces, "--fork", "--kill-child", HERE / "node.sh", name, address, folder],
        start_new_session=True,
    )
    ends.callback(process.wait)
    ends.callback(process.kill)  # --kill-child also ends all processes of the node
    wait_until(lambda: _children(process.pid), name)
    return Node(name, address, _children(process.pid)[0], switch)


def _plug_in(node: Node, rate: str) -> None:
    port, within = node.port, _in_network(node.switch)
    peer = ["type", "veth", "peer", "name", "eth0", "netns", str(node.init)]
    _run(*within, "ip", "link", "add", port, *peer)
    _run(*within, "ip", "link", "set", port, "master", "bridge", "up")
    if rate:  # for traffic to the node and from it
        shape = ["root", "tbf", "rate", rate, "burst", "256kb", "latency", "100ms"]
        _run(*within, "tc", "qdisc", "add", "dev", port, *shape)
        _run(*node.command(["tc", "qdisc", "add", "dev", "eth0", *shape]))


@contextlib.contextmanager
def cluster(names: Sequence[str], rate: str = "") -> Iterator[dict[str, Node]]:
    """A context with nodes, by name; at its end, all their processes are killed.

    Args:
        names: host names.
        rate: bandwidth of each cable in each direction, in tc's format ("1gbit"); empty for no
            limit.
    """
    with contextlib.ExitStack() as ends:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="nodes-"))
        ends.callback(shutil.rmtree, folder)
        places = {name: place for place, name in enumerate(names, 1)}
        _write_keys(folder, {name: _address(place) for name, place in places.items()})
        switch = _start_switch(ends)
        nodes = {}
        for name, place in places.items():
            nodes[name] = _start_node(ends, name, place, switch, folder)
            _plug_in(nodes[name], rate)
        for name in names:
            wait_until((folder / f"{name}.up").exists, name)
        yield nodes


def main() -> int:
    """Run a command in the first node."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--nodes", default="alpha,beta", help="their names")
    parser.add_argument(
        "--rate", default="", help="bandwidth of each cable, for example 1gbit (default: no limit)"
    )
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    reason = why_not()
    if reason:
        print(f"no nodes here: {reason}", file=sys.stderr)
        return 2
    names = options.nodes.split(",")
    with cluster(names, options.rate) as nodes:
        return subprocess.run(nodes[names[0]].command(options.command)).returncode


if __name__ == "__main__":
    sys.exit(main())
