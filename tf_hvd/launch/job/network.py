"""The network interfaces that a job uses. A job on one machine listens only on loopback.

MPI opens transports to other machines even if a job has none, and its launchers listen on every
interface. For a job on one machine, environment.py disables these transports, and a preloaded
library (listen.cc) makes the launcher listen on loopback. On several machines, Open MPI is
restricted to the network that all machines share, if exactly one exists.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tf_hvd.core import contract
from tf_hvd.launch.errors import UsageError

_LIBRARY = Path(__file__).resolve().parents[2] / contract.PRELOADED
# Launcher arguments that select machines, and launcher arguments that select interfaces.
PLACES = (
    *("H", "host", "hosts", "hostfile", "machinefile", "f", "add-host", "add-hostfile"),
    *("dvm", "dvm-uri", "launcher", "rmk"),
)
LISTENING = ("iface", "localhost")


def names(words: Sequence[str], options: Sequence[str]) -> bool:
    """Return whether the user's launcher arguments contain one of these options."""
    return any(w.startswith("-") and w.lstrip("-").partition("=")[0] in options for w in words)


def loopback(family: str) -> str:
    """Return the name of the loopback interface, or "" if none is up.

    Raises:
        UsageError: the interface is down, and the family is Open MPI. Its launcher and its ranks
            would wait for each other. MPICH does not need the interface.
    """
    states = psutil.net_if_stats()
    down = [name for name, state in states.items() if not state.isup]
    for name, addresses in psutil.net_if_addrs().items():
        # An alias is only in this list.
        if name not in down and any(each.address == "127.0.0.1" for each in addresses):
            return name
    if family == "openmpi" and "lo" in down:
        raise UsageError(
            "this machine's loopback interface, which Open MPI needs, is down; run: "
            "ip link set lo up"
        )
    return ""


def jobs_network(common: Sequence[str]) -> str:
    """Return the only network in `common` that this machine belongs to, such as `10.0.0.0/24`.

    Args:
        common: the networks in which all hosts have addresses.

    Returns:
        The network, or "" if several or no networks match.
    """
    own = {
        str(ipaddress.IPv4Interface(f"{each.address}/{each.netmask}").network)
        for addresses in psutil.net_if_addrs().values()
        for each in addresses
        if each.family == socket.AF_INET and each.netmask
    }
    networks = own.intersection(common)
    return networks.pop() if len(networks) == 1 else ""


def listening_on_loopback(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make a launcher listen only on loopback.

    If the library's path cannot be preloaded, a link to it is created in the session's `folder`.
    """
    library = _LIBRARY
    if re.search("[ :]", str(library)):  # these separate the names in LD_PRELOAD
        library = folder / _LIBRARY.name
        library.symlink_to(_LIBRARY)
    preloaded = environ.get("LD_PRELOAD", "")
    return {"LD_PRELOAD": f"{library}:{preloaded}" if preloaded else str(library)}
