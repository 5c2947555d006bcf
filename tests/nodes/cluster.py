"""Several machines on one: each has its own network, host name, processes, /dev/shm, clock, sshd.

A node is a tree of processes in namespaces of its own; veth pairs join the nodes at a bridge
that is in a namespace of its own too, so that nothing of this machine's network is touched.
Needs root and what `why_not` looks for.

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
"""Seconds between the clocks of a node and the next."""


def why_not() -> str:
    """Why this machine cannot have nodes; empty if it can."""
    if os.geteuid() != 0:
        return "only root may make namespaces"
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
    """The process id, out here, of the node's first process."""
    switch: int
    """That of the process that holds the bridge's namespace."""

    def command(self, command: Sequence[str]) -> list[str]:
        """`command` as it is started in this node, in the current folder."""
        namespaces = ["-t", str(self.init), "-m", "-u", "-i", "-n", "-p", "-T"]
        return ["nsenter", *namespaces, "--", "env", "-C", os.getcwd(), *command]

    def sent_bytes(self) -> int:
        """What has left by its cable since it was plugged in."""
        lines = subprocess.check_output(self.command(["cat", "/proc/net/dev"]), text=True)
        return int(lines.split("eth0:")[1].split()[8])

    def lose(self) -> None:
        """All of its processes are gone at once, as when the power fails."""
        os.kill(self.init, signal.SIGKILL)

    def unplug(self) -> None:
        """Its cable carries nothing any more."""
        _run(*_in_network(self.switch), "ip", "link", "set", self.port, "down")

    @property
    def port(self) -> str:
        """Its cable's end at the bridge; a name there has at most 15 letters."""
        return f"to-{self.address}"


def _in_network(process: int) -> list[str]:
    return ["nsenter", "-t", str(process), "-n", "--"]


def _children(process: int) -> list[int]:
    text = pathlib.Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(word) for word in text.split()]


def wait_until(done: Callable[[], object], what: str) -> None:
    """Waits for what is being started, which `what` names in the error if it never is."""
    deadline = time.monotonic() + START_LIMIT
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come up within {START_LIMIT} s")
        time.sleep(0.02)


def _write_keys(folder: pathlib.Path, addresses: dict[str, str]) -> None:
    """One key for all users, one for all hosts: they live as long as the cluster."""
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
    # As on machines that were started at different times, its clock is its own.
    namespaces += ["--time", "--monotonic", str(place * CLOCKS_APART)]
    address = _address(place)
    process = subprocess.Popen(
        ["unshare", *namespaces, "--fork", "--kill-child", HERE / "node.sh", name, address, folder],
        start_new_session=True,
    )
    ends.callback(process.wait)
    ends.callback(process.kill)  # and with it, by --kill-child, all that is in the node
    wait_until(lambda: _children(process.pid), name)
    return Node(name, address, _children(process.pid)[0], switch)


def _plug_in(node: Node, rate: str) -> None:
    port, within = node.port, _in_network(node.switch)
    peer = ["type", "veth", "peer", "name", "eth0", "netns", str(node.init)]
    _run(*within, "ip", "link", "add", port, *peer)
    _run(*within, "ip", "link", "set", port, "master", "bridge", "up")
    if rate:  # of what goes to the node, and of what it sends
        shape = ["root", "tbf", "rate", rate, "burst", "256kb", "latency", "100ms"]
        _run(*within, "tc", "qdisc", "add", "dev", port, *shape)
        _run(*node.command(["tc", "qdisc", "add", "dev", "eth0", *shape]))


@contextlib.contextmanager
def cluster(names: Sequence[str], rate: str = "") -> Iterator[dict[str, Node]]:
    """Nodes of these names, by name; gone at the end with all that runs there.

    Args:
        names: host names.
        rate: what each cable carries in each direction, as tc writes it ("1gbit"); else
            what the processors do.
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
    """Runs a command in the first node."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--nodes", default="alpha,beta", help="their names")
    parser.add_argument("--rate", default="", help="of each cable, as 1gbit; else no limit")
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
