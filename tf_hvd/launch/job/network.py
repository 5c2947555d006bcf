"""On which interfaces a job listens: on one machine on none but loopback.

MPI opens ways to other machines whether or not there are any, and its launchers listen on every
interface. A job that stays on one machine opens none of these ways, and its launcher is given a
library (listen.cc) that makes it listen on loopback. On several machines Open MPI keeps to the
network that they have in common, if that is one.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tf_hvd.core import contract
from tf_hvd.launch.job.hosts import Host, all_local

_LIBRARY = Path(__file__).resolve().parents[2] / contract.PRELOADED
# Arguments of the launchers that name machines, or who does; and those that say where to listen.
_PLACES = (
    *("H", "host", "hosts", "hostfile", "machinefile", "f", "add-host", "add-hostfile"),
    *("dvm", "dvm-uri", "launcher", "rmk"),
)
_LISTENING = ("iface", "localhost")
# What opens none of the transports that listen: Open MPI's, UCX's, and libfabric's, the two that
# MPICH may have been built with; of libfabric also not the one that leaves a file in /dev/shm.
# Open MPI's way through libfabric, for one-sided calls between machines, waits a second in
# MPI_Init where it finds no network for that.
_CLOSED = {
    "OMPI_MCA_btl": "^tcp,ofi",
    "UCX_TLS": "^tcp",
    "FI_PROVIDER": "^tcp,sockets,udp,net,sm2",
}


def stays_here(hosts: Sequence[Host], words: Sequence[str], this_host: str) -> bool:
    """Whether the launcher starts ranks, and what it needs itself, on this machine alone.

    Args:
        hosts: the job's; empty for this machine.
        words: the user's arguments for the launcher.
        this_host: this machine's name.
    """
    return all_local(hosts, this_host) and not _has(words, _PLACES)


def says_where_to_listen(words: Sequence[str]) -> bool:
    """Whether the user's arguments for the launcher do."""
    return _has(words, _LISTENING)


def _has(words: Sequence[str], options: Sequence[str]) -> bool:
    return any(w.startswith("-") and w.lstrip("-").partition("=")[0] in options for w in words)


def closed_transports(words: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """What keeps the ranks of one machine from opening ways to others.

    Whoever chooses transports has said what is to be opened.

    Args:
        words: the user's arguments for the launcher.
        environ: the ranks' environment.

    Returns:
        Variables.
    """
    chosen = {name: name in environ for name in _CLOSED}
    chosen["OMPI_MCA_btl"] |= "btl" in words
    return {name: value for name, value in _CLOSED.items() if not chosen[name]}


def loopback() -> str:
    """The name of the loopback interface; empty if there is none that is known."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == "127.0.0.1" for each in addresses):
            return name
    return ""


def jobs_network(common: Sequence[str]) -> str:
    """The network of a job on several machines, as `10.0.0.0/24`; empty if it may be any of many.

    Args:
        common: the networks that all machines of the job are in.
    """
    own = {str(one) for one in _own_networks()}
    networks = own.intersection(common)
    return networks.pop() if len(networks) == 1 else ""


def _own_networks() -> list[ipaddress.IPv4Network]:
    """The IPv4 networks of this machine."""
    return [
        ipaddress.IPv4Interface(f"{each.address}/{each.netmask}").network
        for addresses in psutil.net_if_addrs().values()
        for each in addresses
        if each.family == socket.AF_INET and each.netmask
    ]


def listening_on_loopback(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """What makes a launcher listen on loopback alone.

    Args:
        folder: the session's.
        environ: the launcher's environment.
    """
    library = _LIBRARY
    if re.search("[ :]", str(library)):  # these stand between the names in LD_PRELOAD
        library = folder / _LIBRARY.name
        library.symlink_to(_LIBRARY)
    preloaded = environ.get("LD_PRELOAD", "")
    return {"LD_PRELOAD": f"{library}:{preloaded}" if preloaded else str(library)}
