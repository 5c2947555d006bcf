"""On which interfaces a job listens: on one machine on none but loopback.

MPI opens ways to other machines whether or not there are any, and its launchers listen on every
interface. A job that stays on one machine opens none of these ways, and its launcher is given a
library (listen.cc) that makes it listen on loopback. On several machines it listens in the network
that they have in common, if that is one.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tf_hvd.launch.allocation import allocation
from tf_hvd.launch.environment import SETTINGS_VARIABLE
from tf_hvd.launch.errors import UsageError
from tf_hvd.launch.hosts import Host, all_local

LISTEN_VARIABLE = "TF_HVD_LISTEN_ON"
_LIBRARY = Path(__file__).resolve().parent.parent / "libtf_hvd_listen.so"
LOOPBACK = "127.0.0.0/8"
# Arguments of the launchers that name other machines, or where to listen.
_PLACES = (
    *("H", "host", "hosts", "hostfile", "machinefile", "f", "add-host", "add-hostfile"),
    *("dvm", "dvm-uri", "launcher", "rmk", "iface", "localhost"),
)
# What opens none of the transports that listen: Open MPI's, UCX's, and libfabric's, the two that
# MPICH may have been built with; of libfabric also not the one that leaves a file in /dev/shm.
# Open MPI's way through libfabric, for one-sided calls between machines, waits a second in
# MPI_Init where it finds no network for that.
_CLOSED = {
    "OMPI_MCA_btl": "^tcp,ofi",
    "UCX_TLS": "^tcp",
    "FI_PROVIDER": "^tcp,sockets,udp,net,sm2",
}


def stays_here(
    hosts: Sequence[Host], words: Sequence[str], environ: Mapping[str, str], this_host: str
) -> bool:
    """Whether the launcher starts ranks, and what it needs itself, on this machine alone.

    Args:
        hosts: the job's; empty for this machine.
        words: the user's arguments for the launcher.
        environ: the launcher's environment: without hosts, it uses a scheduler's.
        this_host: this machine's name.
    """
    if not all_local(hosts, this_host):
        return False
    if any(
        word.startswith("-") and word.lstrip("-").partition("=")[0] in _PLACES for word in words
    ):
        return False
    try:
        found = None if hosts else allocation(environ)
    except UsageError:
        return False
    return found is None or all_local(found.hosts, this_host)


def closed_transports(words: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """What keeps the ranks of one machine from opening ways to others.

    Whoever chooses transports has said what is to be opened.

    Args:
        words: the user's arguments for the launcher.
        environ: the ranks' environment.

    Returns:
        Variables, and in `SETTINGS_VARIABLE` their names: a job that a rank starts, which may be on
        other machines, does not inherit them.
    """
    chosen = {name: name in environ for name in _CLOSED}
    chosen["OMPI_MCA_btl"] |= "btl" in words
    ours = {name: value for name, value in _CLOSED.items() if not chosen[name]}
    return {**ours, SETTINGS_VARIABLE: ",".join(ours)} if ours else {}


def loopback() -> str:
    """The name of the loopback interface; empty if there is none that is known."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == "127.0.0.1" for each in addresses):
            return name
    return ""


def jobs_network(interfaces: str, common: Sequence[str], family: str) -> str:
    """The network of a job on several machines, as `10.0.0.0/24`; empty if it may be any of many.

    Args:
        interfaces: the only ones that the user lets MPI use, as `--network-interfaces` has them.
        common: the networks that all machines of the job are in.
        family: the MPI's. MPICH's launcher is to be found by this machine's name.
    """
    here = _own_networks()
    if interfaces:
        named = interfaces.split(",")
        networks = {one for name in named for one in here.get(name, [name] if "/" in name else [])}
    else:
        networks = {one for own in here.values() for one in own}.intersection(common)
    network = networks.pop() if len(networks) == 1 else ""
    return "" if family == "mpich" and not _name_leads_to(network) else network


def _name_leads_to(network: str) -> bool:
    try:
        address = socket.gethostbyname(socket.gethostname())
        return ipaddress.ip_address(address) in ipaddress.ip_network(network)
    except (OSError, ValueError):
        return False


def _own_networks() -> dict[str, list[str]]:
    """The IPv4 networks of this machine, by interface."""
    return {
        name: [
            str(ipaddress.ip_interface(f"{each.address}/{each.netmask}").network)
            for each in addresses
            if each.family == socket.AF_INET and each.netmask
        ]
        for name, addresses in psutil.net_if_addrs().items()
    }


def listening_in(network: str, folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """What makes a launcher listen in one network alone.

    Args:
        network: as `10.0.0.0/24`; by IPv6 it listens on loopback in any case.
        folder: the session's.
        environ: the launcher's environment.
    """
    library = _LIBRARY
    if re.search("[ :]", str(library)):  # these stand between the names in LD_PRELOAD
        library = folder / _LIBRARY.name
        library.symlink_to(_LIBRARY)
    preloaded = environ.get("LD_PRELOAD", "")
    return {
        "LD_PRELOAD": f"{library}:{preloaded}" if preloaded else str(library),
        LISTEN_VARIABLE: listen_on(network),
    }


def listen_on(network: str) -> str:
    """The value of `LISTEN_VARIABLE` for a network."""
    return f"{network},::1/128"


def ranks_and_daemons(
    family: str, network: str, words: Sequence[str], environ: Mapping[str, str]
) -> dict[str, str]:
    """What makes Open MPI's ranks, and its daemons on other machines, listen in that network alone.

    The daemons if tf_hvd lies there as here, and unless the user says how they are started.

    Args:
        family: the MPI's; nothing is to be told to another one's.
        network: as `10.0.0.0/24`.
        words: the user's arguments for the launcher.
        environ: the launcher's environment.
    """
    if family != "openmpi":
        return {}
    ours = {LISTEN_VARIABLE: listen_on(network)}
    agent = "PRTE_MCA_prte_launch_agent"
    chosen = agent in environ or any(re.search("launch[-_]agent", word) for word in words)
    if not chosen and not re.search("[ :]", str(_LIBRARY)):
        ours[agent] = f"env LD_PRELOAD={_LIBRARY} {LISTEN_VARIABLE}={ours[LISTEN_VARIABLE]} prted"
    return ours
